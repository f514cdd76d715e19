"""Limits new connections of addresses whose connections come to nothing. Pure; `syn_filter` drops the attempts.

A connection is wasted when it ends without ever having spoken for a client. An address may waste a few. Beyond that, a
share of its further attempts to connect is dropped, which follows the rate of wasted connections.
"""

from dataclasses import dataclass, field

WASTED_AT_ONCE = 256.0  # port checks, keys that are not authorized, many clients that start behind one address
WASTED_PER_S = 16.0  # a connection that is cut costs up to 1 ms of a core
SITES_LIMITED_MAX = 128  # the system limits a filter to about 2,500 instructions
SITES_MAX = 4096
SHARE_MIN = 2.0**-12
GROWTH, SHRINK_MAX = 1.25, 16.0  # of a share from one look to the next


@dataclass(slots=True)
class _Site:
    """Connections of one address."""

    left: float = WASTED_AT_ONCE  # connections that it may still waste at once
    wasted: int = 0  # since the last look
    share: float = 1.0  # of its attempts to connect that pass


@dataclass(slots=True)
class Arrivals:
    """The share of attempts to connect that pass, by address. at_s: time of the last look."""

    at_s: float
    _sites: dict[str, _Site] = field(default_factory=dict)  # the latest to waste is last

    def wasted(self, address: str) -> None:
        """A connection from an address was wasted."""
        site = self._sites.pop(address, None) or _Site()
        site.wasted += 1
        self._sites[address] = site
        if len(self._sites) > SITES_MAX:
            del self._sites[next(iter(self._sites))]

    def look(self, at_s: float) -> dict[str, float]:
        """Adapt the shares. Returns the smallest shares below 1, by address."""
        elapsed_s, self.at_s = max(at_s - self.at_s, 1e-3), at_s
        for address, site in list(self._sites.items()):
            _adapt(site, elapsed_s)
            if site.share == 1.0 and site.left == WASTED_AT_ONCE:
                del self._sites[address]
        limited = {address: site.share for address, site in self._sites.items() if site.share < 1.0}
        return dict(sorted(limited.items(), key=lambda item: item[1])[:SITES_LIMITED_MAX])


def _adapt(site: _Site, elapsed_s: float) -> None:
    rate = site.wasted / elapsed_s
    site.left = min(WASTED_AT_ONCE, site.left - site.wasted + WASTED_PER_S * elapsed_s)
    site.wasted = 0
    if site.left < 0 and rate > WASTED_PER_S:
        site.share = max(SHARE_MIN, site.share * max(WASTED_PER_S / rate, 1 / SHRINK_MAX))
    else:
        site.share = min(1.0, site.share * GROWTH)
    site.left = max(site.left, -WASTED_AT_ONCE)
