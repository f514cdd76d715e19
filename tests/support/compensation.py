"""Small models, updates and contexts for the tests of compensators."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from unstale.compensators import (
    Compensator,
    CompensatorContext,
    FreshUpdate,
    LocalSteps,
    Network,
    Outcome,
    StaleRound,
    StaleUpdate,
    create,
)
from unstale.compensators.inversion.reconstruction import Reconstruction
from unstale.compensators.inversion.settings import InversionSettings
from unstale.seeds import Stream, stream

SHAPE, CLASSES = (1, 4, 4), 3
CERTAIN = 1e3
"""A label logit so large that the softmax of the others is 0 in float32."""


def numbers(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    """From N(0, scale^2), float32."""
    return scale * torch.from_numpy(stream(seed, Stream.INVERSION, 10**6).standard_normal(shape)).float()


def images(count: int, *shape: int, seed: int = 0) -> Tensor:
    """Well within [-2, 2], also after a step of the optimiser."""
    return numbers(count, *(shape or SHAPE), seed=seed).clamp(-1.9, 1.9)


def smooth(input_shape: Sequence[int] = SHAPE, classes: int = CLASSES) -> nn.Module:
    """A smooth function, so that no result depends on the last bit: 123 parameters."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), 6), nn.Tanh(), nn.Linear(6, classes))


def network(module: nn.Module | None = None) -> Network:
    return Network(smooth() if module is None else module, SHAPE, CLASSES)


def certain(labels_n: Tensor, classes: int = CLASSES) -> Tensor:
    """Label logits [n, classes] whose softmax is one-hot."""
    return CERTAIN * nn.functional.one_hot(labels_n, classes).float()


def reconstruction(count: int = 4, *, seed: int = 0) -> Reconstruction:
    return Reconstruction(inputs_rX=images(count, seed=seed), labels_rC=numbers(count, CLASSES, seed=seed + 500))


def context(
    net: Network | None = None,
    *,
    steps: LocalSteps | None = None,
    clock: Callable[[], float] | None = None,
    fresh_update: FreshUpdate | None = None,
    seed: int = 0,
) -> CompensatorContext:
    """The context of clients with two steps. net: `smooth` by default."""
    return CompensatorContext(
        network=net or network(),
        steps=steps or LocalSteps(steps=2),
        seed=seed,
        device=torch.device("cpu"),
        clock=clock,
        fresh_update=fresh_update,
    )


def made(name: str, where: CompensatorContext | None = None, **settings: Any) -> Compensator[Any]:
    compensator = create(name, settings, where or context())
    assert compensator is not None
    return compensator


PINNED = {
    "images_max": 4,
    "iterations": 6,
    "iterations_min": 2,
    "adapt": False,
    "trust": 1.0,
    "learning_rate": 0.1,
    "residual": 0.5,
}
"""A few iterations, and fixed settings that are independent of the tuned defaults."""


def inversion(name: str = "gradient-inversion", where: CompensatorContext | None = None, **given: Any):
    """An inverting compensator with a few iterations."""
    return made(name, where, **{**PINNED, **given})


def settings(**given: Any) -> InversionSettings:
    return InversionSettings(**{**PINNED, **given})


def received(
    client_id: int = 0,
    *,
    task_id: int | None = None,
    base_version: int = 0,
    staleness: int = 3,
    num_examples: int = 8,
    local_rate: float = 0.1,
    vector_d: Tensor | None = None,
    base_d: Tensor | None = None,
    is_kept: bool = True,
) -> StaleUpdate:
    """An update of `smooth`, distinct for each client and version."""
    seed = 1000 * (client_id + 1) + base_version
    base_d = numbers(123, seed=base_version, scale=0.3) if base_d is None else base_d
    return StaleUpdate(
        client_id=client_id,
        task_id=10 * base_version + client_id + 1 if task_id is None else task_id,
        base_version=base_version,
        staleness=staleness,
        num_examples=num_examples,
        local_rate=local_rate,
        vector_d=numbers(len(base_d), seed=seed, scale=0.3) if vector_d is None else vector_d,
        kept_base_d=base_d if is_kept else None,
    )


def stale_round(*updates: StaleUpdate, version: int = 3, model_d: Tensor | None = None) -> StaleRound:
    return StaleRound(
        version=version,
        model_d=numbers(123, seed=version, scale=0.3) if model_d is None else model_d,
        buffers_b=torch.empty(0),
        updates=updates,
    )


def taken(subject, *updates: StaleUpdate, version: int = 3) -> Outcome:
    round_ = stale_round(*updates, version=version)
    return subject.take(round_, subject.make(round_))


def tensors_of(value: Any) -> Iterator[Tensor]:
    """All tensors of a state, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from tensors_of(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from tensors_of(one)


def plain(value: Any) -> Any:
    """A state whose tensors can be compared bit for bit."""
    if isinstance(value, Tensor):
        return (str(value.dtype), tuple(value.shape), value.numpy().tobytes())
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value


def equal(first: Outcome, second: Outcome) -> bool:
    """Bit for bit."""
    return (
        plain(dict(first.vectors)) == plain(dict(second.vectors))
        and list(first.updates) == list(second.updates)
        and list(first.errors) == list(second.errors)
        and dict(first.fallbacks) == dict(second.fallbacks)
        and list(first.notes) == list(second.notes)
    )


def reconstructed(estimate: Mapping[str, Any]) -> Mapping[str, Tensor]:
    """The inputs and labels of an estimate of `make`."""
    kept: Mapping[str, Tensor] = estimate["kept"][estimate["choice"][0]]
    return kept


class PlayedClock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s
