"""Gradient inversions on a device, here and on another machine."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from device.counts import Step
from support.compensation import numbers, settings
from unstale.compensators import LocalSteps, Network
from unstale.compensators.inversion.engine import Engine
from unstale.compensators.inversion.reconstruction import Reconstruction
from unstale.compensators.inversion.remote_inversion import computed, packed, taken_back
from unstale.compensators.inversion.state import Inversion, Target
from unstale.compensators.inversion.stopping import loss_checkpoints
from unstale.training.models import build


def iterations(where: torch.device, step: Step, **given: Any) -> Iterator[Tensor]:
    """Iterations of gradient inversion, of two updates together, after the first one, which loads them."""
    net = _network(where)
    some, engine = [_begun(net, seed, where) for seed in (0, 1)], _engine(net, **given)
    engine.iterate(some)
    for _ in range(8):
        with step():
            engine.iterate(some)
        yield from (tensor for one in some for tensor in one.state)


def _network(where: torch.device) -> Network:
    return Network(build("digits_cnn", (1, 8, 8), 10, seed=1).to(where), (1, 8, 8), 10)


def _engine(net: Network, **given: Any) -> Engine:
    return Engine(net, LocalSteps(steps=2, momentum=0.5, weight_decay=0.01, mu=0.1), settings(**given))


def _begun(net: Network, seed: int, where: torch.device, iterations: int = 20) -> Inversion:
    base, update = (net.parts(numbers(net.dimension, seed=seed + more, scale=0.1).to(where)) for more in (0, 100))
    return Inversion(
        target=Target(base=base, update=update, steps=2, rate=0.1),
        iterations=iterations,
        loss_checkpoints=loss_checkpoints(iterations),
        now=Reconstruction(
            inputs_rX=numbers(4, *net.input_shape, seed=seed).clamp(-1.9, 1.9),
            labels_rC=numbers(4, 10, seed=seed + 500),
        ).to(where),
    )


def on_another_machine(where: torch.device, step: Step) -> Iterator[Tensor]:
    """A group of inversions is sent, computed on the other machine's device, and comes back."""
    for _ in range(2):
        net = _network(where)
        some, engine = [_begun(net, seed, where, iterations=6) for seed in (0, 1)], _engine(net)
        with step():
            taken_back(some, computed(packed(some), net, engine, where), where)
        yield from (each for one in some for kept in one.kept.values() for each in (kept.inputs_rX, kept.labels_rC))
