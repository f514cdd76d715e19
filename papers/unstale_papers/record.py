"""What is kept of a job: a run's curves, or what another measurement found. Pure, and JSON on disk."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Legend: E evaluations, R rounds, C classes, N clients.

    version_E, time_E: of each evaluation; rounds and (virtual) seconds. accuracy_E: in [0, 1]. loss_E: nats.
    class_accuracy_EC: None for a class without test examples. training_loss_R: mean of what clients reported, nats; nan
    for a round of nobody. staleness_R: sum of weight times staleness of a round's updates, rounds. counted_R: how
    many of them weigh at least a tenth of the heaviest. heavy_R: how many weigh more than 0.1. client_accuracy_N: of
    the last model on each client's own test examples, None for a client without; empty when nobody has any. errors:
    compensation errors of a round, each [version, method, L1, 1 - cosine]. found: what else a measurement gives,
    by name, JSON values. Losses and stalenesses have 7 significant digits, as float32 has. seconds: of computing.
    steps: local steps of all clients. model_digest: SHA-256, hex.
    """

    version_E: list[int] = field(default_factory=list)
    time_E: list[float] = field(default_factory=list)
    accuracy_E: list[float] = field(default_factory=list)
    loss_E: list[float] = field(default_factory=list)
    class_accuracy_EC: list[list[float | None]] = field(default_factory=list)
    training_loss_R: list[float] = field(default_factory=list)
    staleness_R: list[float] = field(default_factory=list)
    counted_R: list[int] = field(default_factory=list)
    heavy_R: list[int] = field(default_factory=list)
    client_accuracy_N: list[float | None] = field(default_factory=list)
    errors: list[tuple[int, str, float, float]] = field(default_factory=list)
    found: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    steps: int = 0
    model_digest: str = ""

    @property
    def diverged(self) -> bool:
        """Whether training diverged everywhere, so that the run ended there."""
        return "ended" in self.found

    def to_json(self) -> str:
        """One line; NaN and infinities as JavaScript writes them, as Python's own reader takes them."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Record":
        """What `to_json` wrote; fields of a later version are passed over. Raises ValueError or TypeError for what it
        did not write.
        """
        said = json.loads(text)
        known = {one.name for one in fields(cls)}
        record = cls(**{name: value for name, value in said.items() if name in known})
        empty = cls()
        for name in known:
            if not isinstance(getattr(record, name), type(getattr(empty, name))):
                raise TypeError(f"{name} is {type(getattr(record, name)).__name__}")
        return record
