"""The stored result of a job: a run's curves, or the results of another measurement. Pure, and JSON on disk."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

MAIN_METRIC = "main_metric"  # in `Record.found`: name and values_E, if that is not the accuracy


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Legend: E evaluations, R rounds, C classes, N clients.

    version_E, time_E: of each evaluation; rounds and (virtual) seconds. accuracy_E: in [0, 1]. loss_E: nats.
    class_accuracy_EC: None for a class without test examples. training_loss_R: mean of the clients' reports, nats; nan
    for an empty round. staleness_R: sum of weight times staleness of a round's updates, rounds. counted_R: number of
    updates with at least a tenth of the largest weight. heavy_R: number with a weight over 0.1. client_accuracy_N: of
    the last model on each client's own test examples, None for a client without any; empty when no client has any.
    errors: compensation errors of a round, each [version, method, L1, 1 - cosine]. found: further results by name, JSON
    values. Losses and stalenesses have 7 significant digits, as float32 has. seconds: of computing.
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
    def main(self) -> tuple[str, list[float]]:
        """Name of the main metric, and its value in each evaluation."""
        other = self.found.get(MAIN_METRIC)
        return ("accuracy", self.accuracy_E) if other is None else (other["name"], other["values_E"])

    @property
    def diverged(self) -> bool:
        """Whether training diverged on all clients, which ended the run."""
        return "ended" in self.found

    def to_json(self) -> str:
        """One line; NaN and infinities as in JavaScript, which Python's reader accepts."""
        # `asdict` copies each number of the curves, which takes four times as long.
        return json.dumps({one.name: getattr(self, one.name) for one in fields(self)})

    @classmethod
    def from_json(cls, text: str) -> "Record":
        """Parse the text of `to_json`, ignoring fields of later versions. Raises ValueError or TypeError for other
        text.
        """
        fields_by_name = json.loads(text)
        known = {one.name for one in fields(cls)}
        record = cls(**{name: value for name, value in fields_by_name.items() if name in known})
        empty = cls()
        for name in known:
            if not isinstance(getattr(record, name), type(getattr(empty, name))):
                raise TypeError(f"{name} is {type(getattr(record, name)).__name__}")
        return record
