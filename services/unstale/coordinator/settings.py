"""Settings of the coordinator, valid once made. Errors name the keys of the configuration."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from unstale.coordinator import selectors, triggers
from unstale.coordinator.selectors import Selector
from unstale.coordinator.triggers import TRIGGERS, Trigger
from unstale.errors import UserError
from unstale.settings.learning import SelectorSettings, TriggerSettings

_TRIGGERS_IN_ROUNDS = " or ".join(name for name, trigger in TRIGGERS.items() if trigger.in_rounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    """Settings of the coordinator. Raises UserError for a value out of range, or values that contradict each other."""

    clients: int  # N; ids are 0 <= id < N
    rounds: int  # versions to make
    trigger: TriggerSettings
    selector: SelectorSettings
    seed: int
    lease_s: float  # silence after which a client counts as lost; infinity for never
    evaluate_every: int  # rounds
    retry_s: float  # pause before tasks are given again when everyone at work has failed or been refused
    min_clients: int | None  # must have joined before the first task is given; None means all
    once_a_cycle: bool = False  # an update waits until every other client has contributed (GSGM's blocking loop)
    stale_rounds: Mapping[int, int] = field(default_factory=dict)
    """T >= 1 of each stale client, whose task in round t is on version t - T, once there is one; kept as a copy."""
    excluded: frozenset[int] = frozenset()  # ids of clients that may not take part
    availability: tuple[float, ...] | None = None
    """Of each client, the probability that it takes part in a round; None without a scenario that has one."""
    trigger_part: Trigger = field(init=False, repr=False, compare=False)
    selector_part: Selector = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for key in ("clients", "rounds", "evaluate_every"):
            if getattr(self, key) < 1:
                raise UserError(f"{key} is {getattr(self, key)}, expected at least 1")
        if self.seed < 0:
            raise UserError(f"seed is {self.seed}, expected 0 or more")
        if self.lease_s != math.inf:
            _check_seconds("lease_s", self.lease_s)
        _check_seconds("retry_s", self.retry_s)
        object.__setattr__(self, "trigger_part", triggers.create(self.trigger))
        made = selectors.create(self.selector, clients=self.clients, availability=self.availability)
        object.__setattr__(self, "selector_part", made)
        for key, value in (
            ("trigger.k", self.trigger_part.k),
            ("selector.size", self.selector_part.size),
            ("min_clients", self.min_clients),
        ):
            if value is not None and not 1 <= value <= self.clients:
                raise UserError(f"{key} is {value} with {self.clients} clients, expected 1 to {self.clients}")
        self._check_k_is_reached()
        self._check_selector_fits()
        self._check_cycle_fits()
        self._check_stale_rounds()
        object.__setattr__(self, "stale_rounds", MappingProxyType(dict(self.stale_rounds)))

    def _check_cycle_fits(self) -> None:
        if self.once_a_cycle and not self.trigger_part.keeps_sender():
            raise UserError(
                f"trigger.name is {self.trigger.name!r} with a policy whose clients contribute once a cycle, "
                "expected k-async or async"
            )
        if self.once_a_cycle and self.selector_part.size is not None and self.selector_part.size < self.clients:
            raise UserError(
                f"selector.size is {self.selector_part.size} with {self.clients} clients, who contribute once a "
                "cycle with this policy, expected selector all: who waits for a cycle would keep the others from it"
            )

    def _check_k_is_reached(self) -> None:
        k, size = self.trigger_part.k, self.selector_part.size
        # A buffered trigger frees the place of a client whose update is accepted, so few clients can fill it.
        if k is None or size is None or self.trigger_part.frees_sender:
            return
        if k > size:
            raise UserError(
                f"trigger.k is {k} with selector.size {size}, expected at most {size}: "
                f"a {self.trigger.name} round never sees more updates than clients that were selected"
            )

    def _check_selector_fits(self) -> None:
        assert self.availability is None or len(self.availability) == self.clients, "one for each client"
        if self.selector_part.in_rounds and not self.trigger_part.in_rounds:
            raise UserError(
                f"selector.name is {self.selector.name!r} with trigger {self.trigger.name!r}, expected trigger "
                f"{_TRIGGERS_IN_ROUNDS}: it gives each round to the clients whose turn it is"
            )

    def _check_stale_rounds(self) -> None:
        if self.stale_rounds and not self.trigger_part.in_rounds:
            raise UserError(
                f"trigger.name is {self.trigger.name!r} with clients that are stale by a number of rounds, expected "
                f"{_TRIGGERS_IN_ROUNDS}: in other loops staleness comes from latency"
            )
        for client_id, rounds in self.stale_rounds.items():
            if not 0 <= client_id < self.clients:
                raise UserError(
                    f"stale_rounds names client {client_id} with {self.clients} clients, "
                    f"expected 0 to {self.clients - 1}"
                )
            if rounds < 1:
                raise UserError(f"stale_rounds of client {client_id} is {rounds}, expected at least 1")

    @property
    def stale_rounds_max(self) -> int:
        """How far the version of a task can lie behind the current one when it is given."""
        return max(self.stale_rounds.values(), default=0)

    @property
    def clients_to_start(self) -> int:
        """How many clients must have joined before the first task is given."""
        required = self.clients if self.min_clients is None else self.min_clients
        return min(required, self.clients - len(self.excluded))

    @property
    def round_size_max(self) -> int:
        """The most updates that one round can hold."""
        if self.trigger_part.k is not None:
            return self.trigger_part.k
        if self.trigger.name == "async":
            return 1
        if self.trigger.name == "sync" and self.selector_part.size is not None:
            return self.selector_part.size
        return self.clients

    @property
    def unaggregated_max(self) -> int:
        """The most accepted updates at a time that no applied round holds yet, one in the making included.

        Open tasks count with them: each may become one more. Where a client waits for the round that holds
        its update, it has a task or an update, never both: one for each client. A trigger that frees senders
        gives tasks only while at most 2 k - 1 updates are unaggregated: k that are in the making, or go into
        it now, and k - 1 behind them. No more than `clients` tasks are then open, and until tasks are next
        given, an update takes the place of the task that it answers: 2 k - 1 + clients.
        """
        more = 2 * self.round_size_max - 1 if self.trigger_part.frees_sender else 0
        return self.clients + more


def _check_seconds(key: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise UserError(f"{key} is {value}, expected a number of seconds above 0")
