"""Every attack once, on a real server with honest clients beside it. `python -m tests.hostile` runs more of them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hostile import table
from hostile.__main__ import drawn
from hostile.attacks import ALL
from hostile.conftest import ATTACKS
from hostile.play import Play, Played
from hostile.scenes import SCENES

USUAL = {name: [[attack] for attack in ALL.values() if attack.scenes[0] == name] for name in SCENES}


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.parametrize("scene", [name for name, groups in USUAL.items() if groups])
def test_a_server_survives_every_attack_and_honest_clients_continue(
    scene: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    played = list(Play(SCENES[scene], tmp_path).run(USUAL[scene]))
    lines = [line for one in played for line in table.lines(one)]
    record_property(ATTACKS, lines)
    assert not [one for one in played if one.wrong], "\n".join(lines)
    assert {one.name for one in played} >= {attack.name for [attack] in USUAL[scene]}


def test_every_attack_has_an_existing_scene() -> None:
    assert all({*attack.scenes} <= SCENES.keys() for attack in ALL.values())
    assert {attack.name for groups in USUAL.values() for [attack] in groups} == ALL.keys()


def test_a_seed_draws_the_same_combinations_again() -> None:
    def drawn_rows(seed: int) -> list[tuple[str, list[str], float]]:
        made = [drawn(seed, number) for number in range(20)]
        return [(scene.name, [attack.name for attack in attacks], strength) for scene, attacks, strength in made]

    assert drawn_rows(3) == drawn_rows(3)
    assert drawn_rows(3) != drawn_rows(4)
    assert all(scene in ALL[name].scenes for scene, names, _ in drawn_rows(3) for name in names)


def test_a_row_names_the_violations() -> None:
    played = Played(name="errors", scene="plain", before_per_s=90.0, after_per_s=110.0, wrong=["it ended"])
    assert played.ratio == 0.0
    row, failed = table.lines(played)
    assert row.startswith("errors")
    assert failed == "    FAILED errors, plain: it ended"
