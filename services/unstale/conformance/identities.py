"""Where one policy must be another one.

Legend: K updates of a round, in order of arrival; N clients; s staleness, 0 is fresh.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from unstale.conformance.finding import Finding, off
from unstale.conformance.golden import spelled
from unstale.conformance.policy_under_test import PolicyUnderTest, fresh, random_rounds
from unstale.policies import UpdateBatch

TOLERANCE = 1e-6

Change = Callable[[UpdateBatch], UpdateBatch]


def _equally_stale(batch: UpdateBatch) -> UpdateBatch:
    """All s equal; 2 where there were as many rounds."""
    return replace(batch, staleness_K=torch.full_like(batch.staleness_K, min(batch.version, 2)))


def _equal(batch: UpdateBatch) -> UpdateBatch:
    """All s equal to 0 and all g equal."""
    return replace(fresh(batch), matrix_Kd=batch.matrix_Kd[:1].repeat(len(batch), 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Under rounds that are changed so, `policy` takes the steps of `other`, from the first state of both."""

    policy: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    change: Change
    when: str
    other: str = "fedavg"
    everybody: bool = True  # whether all N clients send in each round
    rounds: int = 6

    def __str__(self) -> str:
        return f"{self.when}{spelled(self.settings)}: it is {self.other}"


def _fresh(policy: str, **settings: Any) -> Identity:
    return Identity(policy=policy, settings=settings, change=fresh, when="everybody fresh")


def _always(policy: str, *, other: str = "fedavg", **settings: Any) -> Identity:
    return Identity(
        policy=policy, settings=settings, change=lambda batch: batch, when="any round", other=other, everybody=False
    )


_ONE_STEP = (
    "coordinate-median", "direct", "dynsgd", "fedbuff", "fedhist", "fedprox", "geometric-median", "gsgm", "krum",
    "moon", "multi-krum", "refl", "sasgd", "scaffold", "trimmed-mean", "twafl", "weighted", "wkafl",
)  # fmt: skip
_FRESH = ("fedar", "fedvarp", "mifa", "direct", "dynsgd", "fedbuff", "refl", "sasgd", "weighted")

IDENTITIES = (
    *(Identity(policy=policy, change=_equal, when="a first round of equal updates", rounds=1) for policy in _ONE_STEP),
    Identity(policy="refl", change=_equally_stale, when="one staleness"),
    *map(_fresh, _FRESH),
    _fresh("mifa", init="zeros"),
    _fresh("direct", stale_form="model"),
    _fresh("twafl", weighting="equal"),
    _fresh("gsgm", alpha=0.0),
    _fresh("fedavg-is", probabilities=1.0),
    *map(_always, ("fedprox", "moon", "scaffold", "direct")),
    _always("fedavg-s", size=5),
    _always("fedbuff", staleness="none"),
    _always("trimmed-mean", trim=0.0),
    _always("multi-krum", selected=5),
    _always("fedhist", egs=False, haa="off", ina=False),
    _always("dynsgd", normalise=False, other="sasgd"),
    _always("wkafl", no_gradient_selection=True, no_staleness=True, no_non_iidness=True),
    _always("multi-krum", selected=1, other="krum"),
)


def of(policy: str) -> Iterator[Identity]:
    """Those of one policy."""
    return (identity for identity in IDENTITIES if identity.policy == policy)


def hold(identity: Identity, device: torch.device) -> Finding:
    """Give both the same rounds, and compare their steps."""
    one = PolicyUnderTest(name=identity.policy, device=device, settings=identity.settings).make()
    two = PolicyUnderTest(name=identity.other, device=device).make()
    worst = 0.0
    for drawn in random_rounds(one, 20, everybody=identity.everybody)[: identity.rounds]:
        batch = identity.change(drawn)
        got, expected = one.step(batch), two.step(batch)
        worst = max(worst, off(got.direction_d * got.rate_factor, expected.direction_d * expected.rate_factor))
    return Finding(
        expected=f"the steps of {identity.other} within {TOLERANCE:.0e}",
        got=f"{worst:.0e} off",
        passed=worst <= TOLERANCE,
    )
