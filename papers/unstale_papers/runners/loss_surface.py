"""The loss around a model, over a client's own examples, reconstructed ones or noise.

Figure 4 of the paper.
Source: Gradient inversion (Wang & Gao, 2023), docs/methods/measures.md#inversion

Legend: d parameters, r examples, C classes, P places on each of two axes.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from unstale.compensators import StaleUpdate
from unstale.compensators.inversion import start
from unstale.compensators.inversion.reconstruction import Reconstruction
from unstale.config.settings import Settings
from unstale.errors import unknown_name
from unstale.seeds import Generator, Stream, stream
from unstale_client.net.clock import now_s
from unstale_papers.record import Record
from unstale_papers.runners.inverting import inverted
from unstale_papers.runners.stale_updates import Played, played

KINDS = ("own", "reconstructed", "noise")
PLACES = 21
NOISE, DIRECTION = 3, 4
"""Purpose of a draw, after client and task in the key of the stream."""


def measure(settings: Settings, options: Mapping[str, Any], *, on_progress: Callable[[float], None]) -> Record:
    """The loss at w_b + a u + b u', for a and b from -1 to 1.

    u: the update of a late client from the last model of a run, w_b. u': random, orthogonal to u and of its length.
    options: `examples` of the loss, one of KINDS; reconstructed ones have reconstructed labels.
    found: `likeness of loss surface`, its correlation with that over the client's own examples; `loss at the model`;
    `surface`, P rows along u'; and the row through w_b among `curves`.
    """
    started_s = now_s()
    kind = options["examples"]
    if kind not in KINDS:
        raise unknown_name("kind of examples", kind, KINDS)
    run = played(settings, [settings.rounds])
    update = run.update(run.late_client(), settings.rounds, task=settings.rounds)
    own = surface(run, update, _own(run, update))
    shown = own if kind == "own" else surface(run, update, _others(run, update, kind, on_progress))
    on_progress(1.0)
    steps = np.linspace(-1, 1, PLACES)
    middle = PLACES // 2
    points = list(zip(steps.tolist(), shown[middle].tolist(), strict=True))
    return Record(
        found={
            "likeness of loss surface": likeness(shown, own),
            "loss at the model": float(shown[middle, middle]),
            "surface": shown.tolist(),
            "curves": {"loss along the update": {"x": "along the update, of its length", "points": points}},
        },
        seconds=now_s() - started_s,
    )


def likeness(surface_PP: Tensor, other_PP: Tensor) -> float:
    """Pearson's correlation of two surfaces."""
    found: float = torch.corrcoef(torch.stack([surface_PP.flatten(), other_PP.flatten()]))[0, 1].item()
    return found


def surface(run: Played, update: StaleUpdate, examples: Reconstruction) -> Tensor:
    """The mean cross-entropy around the base model of an update, [P, P] float64: rows along a random direction, columns
    along the update.
    """
    network = run.inverting().context.network
    assert network is not None
    model_d = update.base_d
    along_d = -update.vector_d * update.local_rate  # the client's direction
    across_d = _across(along_d, _rng(run, update, DIRECTION))
    labels_rC = examples.labels_rC.softmax(-1)
    values = []
    with network.in_use(), torch.no_grad():
        for b in np.linspace(-1, 1, PLACES):
            for a in np.linspace(-1, 1, PLACES):
                there = network.parts(model_d + float(a) * along_d + float(b) * across_d)
                logits_rC = network.logits(there, examples.inputs_rX)
                values.append(-(labels_rC * logits_rC.log_softmax(-1)).sum(-1).mean())
    return torch.stack(values).double().cpu().view(PLACES, PLACES)


def _across(along_d: Tensor, rng: Generator) -> Tensor:
    """A random vector orthogonal to another one and of its length, [d]."""
    drawn_d = torch.from_numpy(rng.standard_normal(len(along_d), dtype=np.float32)).to(along_d.device)
    across_d = drawn_d - (drawn_d @ along_d) / along_d.square().sum() * along_d
    made_d: Tensor = across_d * (along_d.norm() / across_d.norm())
    return made_d


def _own(run: Played, update: StaleUpdate) -> Reconstruction:
    """The client's examples, with near-certain labels."""
    inputs_nX, labels_n = run.context.trainer.examples(update.client_id)
    sure = 100.0  # e^-100 is negligible beside 1
    labels_nC = sure * one_hot(labels_n, run.context.dataset.classes).float()
    return Reconstruction(inputs_rX=inputs_nX, labels_rC=labels_nC)


def _others(run: Played, update: StaleUpdate, kind: str, on_progress: Callable[[float], None]) -> Reconstruction:
    inverting = run.inverting()
    if kind == "reconstructed":
        one, _ = inverted(inverting, update, on_iteration=on_progress)
        return one.now
    network = inverting.context.network
    assert network is not None
    examples = len(inverting.inversions.begin(update).now)
    inputs_rX, labels_rC = start.drawn(network, examples, _rng(run, update, NOISE), run.context.device)
    return Reconstruction(inputs_rX=inputs_rX, labels_rC=labels_rC)


def _rng(run: Played, update: StaleUpdate, which: int) -> Generator:
    return stream(run.settings.seed, Stream.INVERSION, update.client_id, update.task_id, which)
