"""Attacks by Byzantine clients, for experiments: which clients attack, and how their labels or updates differ.

Legend: d parameters, n examples of the client, N clients.
"""

from dataclasses import KW_ONLY, dataclass, replace
from math import sqrt

import torch
from torch import Tensor

from unstale.seeds import Generator, Stream, stream
from unstale.training.datasets import Data, labelled
from unstale.training.examples import Examples, TensorExamples
from unstale.training.local import LocalUpdate

LABEL_FLIP = "label-flip"
LISTED_MAX = 10  # ids that a description names


def attackers(seed: int, clients: int, count: int) -> frozenset[int]:
    """The ids of the clients that attack. A greater count, 0 to N, adds ids and keeps those of a smaller one."""
    order_N = stream(seed, Stream.ATTACKS).permutation(clients)
    return frozenset(order_N[:count].tolist())


@dataclass(frozen=True, slots=True)
class Attack:
    """An attack by some of the clients. `label-flip` changes their labels; the others change their updates."""

    name: str
    clients: frozenset[int]
    _: KW_ONLY
    seed: int  # of the run; noise is drawn from it
    factor: float | None  # strength, > 0; None for `label-flip`

    @property
    def description(self) -> str:
        """Name, factor and at most `LISTED_MAX` attackers, for people: `scale by 1000 (client 7)`."""
        strength = "" if self.factor is None else f" by {self.factor:g}"
        ids = [str(client_id) for client_id in sorted(self.clients)]
        more = f" and {len(ids) - LISTED_MAX} more" if len(ids) > LISTED_MAX else ""
        noun = "client" if len(ids) == 1 else "clients"
        return f"{self.name}{strength} ({noun} {', '.join(ids[:LISTED_MAX])}{more})"

    def labels(self, client_id: int, labels_n: Tensor, classes: int) -> Tensor:
        """The labels [n] that a client trains with: class y as `classes - 1 - y` where it flips labels."""
        flips = self.name == LABEL_FLIP and client_id in self.clients
        return classes - 1 - labels_n if flips else labels_n

    def examples(self, client_id: int, examples: Examples, data: Data) -> Examples:
        """The examples that a client trains with. Raises UserError for flipped labels of data without labels."""
        if self.name != LABEL_FLIP:
            return examples
        classes = labelled(data).classes
        assert isinstance(examples, TensorExamples), "a labelled data set has tensors"
        return TensorExamples(examples.inputs, self.labels(client_id, examples.targets, classes))

    def update(self, client_id: int, number: int, made: LocalUpdate) -> LocalUpdate:
        """The update that a client sends, with other vectors than `made` where this client attacks by its updates.

        All else stays, such as the norms' averages in the buffers, and the state that the client itself keeps.
        number: of the client's task, from 0.
        """
        if self.name == LABEL_FLIP or client_id not in self.clients:
            return made
        rng = stream(self.seed, Stream.ATTACKS, client_id, number)
        vector_d = self._changed(made.vector_d, rng)
        extra_d = None if made.extra_d is None else self._changed(made.extra_d, rng)
        return replace(made, vector_d=vector_d, extra_d=extra_d)

    def _changed(self, vector_d: Tensor, rng: Generator) -> Tensor:
        assert self.factor is not None, "an attack by updates has a factor"
        if self.name == "sign-flip":
            return vector_d * -self.factor
        if self.name == "scale":
            return vector_d * self.factor
        assert self.name == "noise", self.name
        drawn_d = torch.from_numpy(rng.standard_normal(vector_d.numel(), dtype="float32"))
        root_mean_square = float(vector_d.double().norm()) / sqrt(vector_d.numel())
        return vector_d + drawn_d.to(vector_d.device) * (self.factor * root_mean_square)
