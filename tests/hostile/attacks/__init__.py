"""All attacks, by name."""

from hostile.attacks import connections, floods, transfers, updates
from hostile.attacks.attack import Attack

ALL: dict[str, Attack] = {
    attack.name: attack for attack in (*connections.ATTACKS, *floods.ATTACKS, *transfers.ATTACKS, *updates.ATTACKS)
}
