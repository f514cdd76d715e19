"""How many new connections an address may make while those that it makes come to nothing.

A connection is wasted when it ends without ever having spoken for a client. An address may waste a few. Above that, a
share of its further attempts to connect is dropped, and the share follows the rate at which connections are wasted.
Pure: the clock is the caller's, and `syn_filter` drops the attempts.
"""

from dataclasses import dataclass, field

WASTED_AT_ONCE = (
    256.0  # checks of ports, keys that are not admitted, a start of many clients behind one address
)
WASTED_PER_S = 16.0  # a connection that is cut costs up to 1 ms of a core
SITES_LIMITED_MAX = 128  # the system bounds a filter to some 2,500 instructions
SITES_MAX = 4096  # that are remembered
SHARE_MIN = 2.0**-12
GROWTH, SHRINK_MAX = 1.25, 16.0  # of a share from one look to the next


@dataclass(slots=True)
class _Site:
    """Connections of one address.

    Attributes:
        left: connections that it may still waste at once.
        wasted: since the last look.
        share: of its attempts to connect that are let in.
    """

    left: float = WASTED_AT_ONCE
    wasted: int = 0
    share: float = 1.0


@dataclass(slots=True)
class Arrivals:
    """The shares of attempts to connect that are let in, by address.

    Attributes:
        at_s: time of the last look, in seconds.
    """

    at_s: float
    _sites: dict[str, _Site] = field(default_factory=dict)  # the one that wasted last is last

    def wasted(self, site: str) -> None:
        """A connection from an address ended without having spoken for a client."""
        found = self._sites.pop(site, None) or _Site()
        found.wasted += 1
        self._sites[site] = found
        if len(self._sites) > SITES_MAX:
            del self._sites[next(iter(self._sites))]

    def look(self, at_s: float) -> dict[str, float]:
        """Adapt the shares to what was wasted since the last look.

        Args:
            at_s: now, in seconds.

        Returns:
            Addresses of which fewer than all attempts are let in, each with the share that is: those with the smallest.
        """
        passed_s, self.at_s = max(at_s - self.at_s, 1e-3), at_s
        for name, site in list(self._sites.items()):
            _adapt(site, passed_s)
            if site.share == 1.0 and site.left == WASTED_AT_ONCE:
                del self._sites[name]
        limited = {name: site.share for name, site in self._sites.items() if site.share < 1.0}
        kept = sorted(limited, key=limited.__getitem__)[:SITES_LIMITED_MAX]
        return {name: limited[name] for name in kept}


def _adapt(site: _Site, passed_s: float) -> None:
    rate = site.wasted / passed_s
    site.left = min(WASTED_AT_ONCE, site.left - site.wasted + WASTED_PER_S * passed_s)
    site.wasted = 0
    if site.left < 0 and rate > WASTED_PER_S:
        site.share = max(SHARE_MIN, site.share * max(WASTED_PER_S / rate, 1 / SHRINK_MAX))
    else:
        site.share = min(1.0, site.share * GROWTH)
    site.left = max(site.left, -WASTED_AT_ONCE)
