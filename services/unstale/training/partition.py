"""Which client holds which training examples. Source: algorithms.md 3.

Legend: N clients, n examples, C classes.
"""

import numpy as np
from numpy.typing import NDArray

from unstale.errors import UserError, unknown_name
from unstale.seeds import Generator

Indices = NDArray[np.int64]

PARTITIONS = ("dirichlet", "iid")
ALPHA_MIN, ALPHA_MAX = (
    1e-3,
    1e6,
)  # below, one client gets all of a class; above, shares differ by no whole example


def split(
    name: str,
    labels_n: NDArray[np.integer],
    clients: int,
    rng: Generator,
    *,
    alpha: float | None = None,
    min_examples: int = 8,
) -> list[Indices]:
    """The indices of each client's examples: every example belongs to exactly one client, none to two.

    labels_n: in [0, C). rng: the stream `Stream.PARTITION`; same stream, same split. alpha: concentration of
    `dirichlet`, the smaller the less alike the clients; infinity means `iid`, which has no use for it.
    min_examples: the least that a client holds, >= 1. Raises UserError when this cannot be done.
    """
    if name not in PARTITIONS:
        raise unknown_name("partition", name, PARTITIONS)
    if clients < 1 or min_examples < 1:
        raise UserError(
            "expected one or more clients with one or more examples each, got "
            f"clients={clients}, min_examples={min_examples}"
        )
    check_size(len(labels_n), clients, min_examples)
    if name == "dirichlet" and alpha is None:
        raise UserError("partition 'dirichlet' needs alpha, for example 0.3")
    if name == "iid" or alpha == np.inf:
        parts = iid(len(labels_n), clients, rng)
    else:
        assert alpha is not None
        parts = dirichlet(labels_n, clients, rng, alpha=alpha, min_examples=min_examples)
    return [rng.permutation(part) for part in parts]


def check_size(examples: int, clients: int, min_examples: int) -> None:
    """Raise UserError when there are too few examples for so many clients."""
    if examples < clients * min_examples:
        raise UserError(
            f"{examples} examples cannot give {clients} clients {min_examples} each; "
            f"take at most {examples // min_examples} clients or lower min_examples"
        )


def iid(examples: int, clients: int, rng: Generator) -> list[Indices]:
    """3.1: one permutation, cut into N nearly equal consecutive parts, the first ones one larger."""
    return np.array_split(rng.permutation(examples), clients)


def dirichlet(
    labels_n: NDArray[np.integer], clients: int, rng: Generator, *, alpha: float, min_examples: int
) -> list[Indices]:
    """3.2, class-wise: for each class c, shuffle its n_c examples, draw q ~ Dirichlet(alpha * 1_N), and cut
    at

        floor(cumsum(q) * n_c)

    so that both how many examples a client holds and of which classes differ. Then `_repair`.
    """
    if not ALPHA_MIN <= alpha <= ALPHA_MAX:
        raise UserError(f"alpha must be {ALPHA_MIN} to {ALPHA_MAX:.0f}, or inf for IID, got {alpha}")
    held: list[list[int]] = [[] for _ in range(clients)]
    for label in range(int(labels_n.max()) + 1):
        examples = rng.permutation(np.flatnonzero(labels_n == label))
        shares_N = rng.dirichlet(np.full(clients, alpha))
        cuts = np.floor(np.cumsum(shares_N)[:-1] * len(examples)).astype(np.int64)
        for own, part in zip(held, np.split(examples, cuts), strict=True):
            own.extend(part.tolist())
    _repair(held, rng, min_examples)
    return [np.array(own, dtype=np.int64) for own in held]


def _repair(held: list[list[int]], rng: Generator, min_examples: int) -> None:
    """While some client has too few, move one random example from the largest to the smallest client."""
    # argmin and argmax take the lowest id on ties.
    sizes_N = np.array([len(own) for own in held])
    while sizes_N.min() < min_examples:
        smallest, largest = int(sizes_N.argmin()), int(sizes_N.argmax())
        held[smallest].append(held[largest].pop(int(rng.integers(sizes_N[largest]))))
        sizes_N[smallest] += 1
        sizes_N[largest] -= 1
