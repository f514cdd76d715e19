"""Iterations that an inversion saves by starting from the client's last result.

Figure 6 of the paper.
Source: Gradient inversion (Wang & Gao, 2023), docs/methods/measures.md#inversion

Legend: n examples of a client.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from unstale.config.data import ClientData
from unstale.config.settings import Settings
from unstale.seeds import Generator, Stream, stream
from unstale.training.partition import Indices
from unstale.training.registry import create as create_training
from unstale.training.trainer import Trainer
from unstale_client.net.clock import now_s
from unstale_papers.record import Record
from unstale_papers.runners.inverting import curve, inverted
from unstale_papers.runners.stale_updates import Played, played

CHANGED = 5
"""Purpose of a draw, after client and task in the key of the stream."""

NEAR = 1.05  # a loss up to this factor above the target reaches it


def measure(settings: Settings, options: Mapping[str, Any], *, on_progress: Callable[[float], None]) -> Record:
    """Invert two updates of a late client, the second from the first result and from noise.

    The base model of the first is that of the client's previous turn (N / m rounds before), that of the second is the
    last. options: `changed`, the share of the client's examples that others of the same class replace in between.
    found: `iterations saved`, 1 - warm / cold, of the iterations after which each is within 5 % of the final loss of
    the inversion from noise; one that never is counts all iterations. `cold
    iterations`, `warm iterations`; and both losses among `curves`.
    """
    started_s = now_s()
    last = settings.rounds
    between = settings.clients // (settings.selector.size or settings.clients)
    run = played(settings, [max(0, last - between), last])
    client_id = run.late_client()
    before = run.update(client_id, max(0, last - between), task=last)
    update = run.update(client_id, last, task=last + 1, of=_changed(run, client_id, options["changed"]))
    done = 0

    def tell(share: float) -> None:
        on_progress((done + share) / 3)

    warm = run.inverting()
    first, _ = inverted(warm, before, on_iteration=tell)
    warm.inversions.remember(client_id, first.now.on_host())
    done = 1
    _, cold_losses = inverted(run.inverting(), update, on_iteration=tell)
    done = 2
    begun = warm.inversions.begin(update)
    begun.iterations = len(cold_losses) - 1  # as many, so that the rate falls at the same iterations
    _, warm_losses = inverted(warm, update, on_iteration=tell)
    cold, warmed = (reached(losses, NEAR * cold_losses[-1]) for losses in (cold_losses, warm_losses))
    return Record(
        found={
            "iterations saved": saved(cold, warmed),
            "cold iterations": cold,
            "warm iterations": warmed,
            "curves": {
                name: {"x": "iteration", "points": curve(losses)}
                for name, losses in (("cold loss", cold_losses), ("warm loss", warm_losses))
            },
        },
        seconds=now_s() - started_s,
    )


def reached(losses: Sequence[float], target: float) -> int:
    """Number of iterations until a loss is at most the target; all if it never is. losses: before each iteration and
    after the last.
    """
    return next((done for done, loss in enumerate(losses) if loss <= target), len(losses) - 1)


def saved(cold: int, warm: int) -> float:
    """The share of a cold start's iterations that a warm start saves: negative if it needs more."""
    return 1 - warm / cold if cold else 0.0


def _changed(run: Played, client_id: int, share: float) -> Trainer:
    """A trainer of the client with some examples replaced."""
    settings, dataset = run.settings, run.context.dataset
    shares = ClientData.of(settings, dataset).train()
    rng = stream(settings.seed, Stream.INVERSION, client_id, settings.rounds, CHANGED)
    shares[client_id] = replaced(shares[client_id], dataset.train.labels_N.numpy(), share, rng)
    return Trainer(dataset, shares, run.context.model, create_training(settings.training), settings.seed)


def replaced(own_n: Indices, labels_N: Indices, share: float, rng: Generator) -> Indices:
    """A client's examples, round(share n) of them replaced at random by examples of the same class that it lacks; fewer
    where a class has no more.

    own_n: indices. labels_N: of all examples.
    """
    held_n = own_n.copy()
    places = rng.permutation(len(own_n))[: round(share * len(own_n))]
    for label in np.unique(labels_N[own_n[places]]):
        those = places[labels_N[own_n[places]] == label]
        free = np.setdiff1d(np.flatnonzero(labels_N == label), own_n)
        new = rng.permutation(free)[: len(those)]
        held_n[those[: len(new)]] = new
    return held_n
