"""Attacks by Byzantine clients, for experiments: which clients attack, and how their labels or updates differ.

Legend: d parameters, n examples of the client, N clients.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from math import sqrt
from types import MappingProxyType

import torch
from torch import Tensor

from unstale.seeds import Generator, Stream, stream
from unstale.training.local import LocalUpdate

LABEL_FLIP = "label-flip"
LISTED_MAX = 10  # ids that a description names

_Change = Callable[[Tensor, float, Generator], Tensor]


def _sign_flip(vector_d: Tensor, factor: float, rng: Generator) -> Tensor:  # noqa: ARG001
    return vector_d * -factor


def _scale(vector_d: Tensor, factor: float, rng: Generator) -> Tensor:  # noqa: ARG001
    return vector_d * factor


def _noise(vector_d: Tensor, factor: float, rng: Generator) -> Tensor:
    drawn_d = torch.from_numpy(rng.standard_normal(vector_d.numel(), dtype="float32"))
    root_mean_square = float(vector_d.double().norm()) / sqrt(vector_d.numel())
    return vector_d + drawn_d.to(vector_d.device) * (factor * root_mean_square)


_CHANGES: Mapping[str, _Change] = MappingProxyType({"sign-flip": _sign_flip, "scale": _scale, "noise": _noise})


def attackers(seed: int, clients: int, count: int) -> frozenset[int]:
    """The ids of the clients that attack. A greater count adds ids and keeps those of a smaller one.

    Args:
        seed: of the run, >= 0.
        clients: N, clients of the run.
        count: how many of them attack, 0 to N.

    Returns:
        `count` ids, each 0 to N - 1.
    """
    order_N = stream(seed, Stream.ATTACKS).permutation(clients)
    return frozenset(order_N[:count].tolist())


class Attack:
    """An attack by some of the clients. `label-flip` changes their labels; the others change their updates.

    Attributes:
        clients: ids of the clients that attack.
    """

    def __init__(self, name: str, clients: Collection[int], *, seed: int, factor: float | None) -> None:
        """Make an attack.

        Args:
            name: `attack.name`.
            clients: ids of the clients that attack.
            seed: of the run, >= 0; noise is drawn from it.
            factor: strength, > 0; None for `label-flip`.
        """
        self.clients = frozenset(clients)
        self._name = name
        self._seed = seed
        self._factor = factor

    @property
    def description(self) -> str:
        """Name, factor and attackers, for people: `scale by 1000 (client 7)`."""
        strength = "" if self._factor is None else f" by {self._factor:g}"
        return f"{self._name}{strength} ({_listed(self.clients)})"

    def labels(self, client_id: int, labels_n: Tensor, classes: int) -> Tensor:
        """The labels that a client trains with.

        Args:
            client_id: the client.
            labels_n: [n] int64, the true ones, 0 to classes - 1.
            classes: number of classes.

        Returns:
            [n] int64: class y as `classes - 1 - y` where this client flips labels, else the true ones.
        """
        flips = self._name == LABEL_FLIP and client_id in self.clients
        return classes - 1 - labels_n if flips else labels_n

    def update(self, client_id: int, number: int, made: LocalUpdate) -> LocalUpdate:
        """The update that a client sends.

        Args:
            client_id: the client.
            number: of the client's task, from 0.
            made: the update that its training made.

        Returns:
            `made`, with other vectors where this client attacks by its updates. All else stays, such as the norms'
            averages in the buffers, and the state that the client itself keeps.
        """
        change = _CHANGES.get(self._name)
        if change is None or client_id not in self.clients:
            return made
        assert self._factor is not None, "an attack by updates has a factor"
        rng = stream(self._seed, Stream.ATTACKS, client_id, number)
        vector_d = change(made.vector_d, self._factor, rng)
        extra_d = None if made.extra_d is None else change(made.extra_d, self._factor, rng)
        return replace(made, vector_d=vector_d, extra_d=extra_d)


def _listed(clients: Collection[int]) -> str:
    """`clients 3, 7, 9`, with at most `LISTED_MAX` ids."""
    ids = [str(client_id) for client_id in sorted(clients)]
    more = f" and {len(ids) - LISTED_MAX} more" if len(ids) > LISTED_MAX else ""
    return f"{'client' if len(ids) == 1 else 'clients'} {', '.join(ids[:LISTED_MAX])}{more}"
