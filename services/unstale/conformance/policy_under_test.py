"""The policy that is looked at, the rounds that it is given, and what can be wrong with its steps.

Legend: K updates of a round, in order of arrival; d parameters; N clients.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unstale.policies import Policy, PolicyContext, Step, UpdateBatch
from unstale.policies.policy import METRICS_MAX
from unstale.policies.registry import find, settings_of
from unstale.seeds import Generator, Stream, stream
from unstale.training.measured import METRIC_NAME

LONG = 30
"""Rounds of a long sequence: enough for what begins late."""
LATE = 5000
"""The highest staleness that is tried."""

BY_ROW = (
    *("matrix_Kd", "extra_Kd", "staleness_K", "num_examples_K", "loss_K", "client_ids_K", "batch_sizes_K"),
    "local_rates_K",
)
"""Tensors of a batch with a row for each update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyUnderTest:
    """A registered policy under some settings, on a device, and the run that it is told of.

    clients to rounds: as in `PolicyContext`. profile, synchronous: as in `registry.settings_of`.
    """

    name: str
    device: torch.device
    settings: Mapping[str, Any] = field(default_factory=dict)
    clients: int = 5
    dimension: int = 7
    round_size: int | None = 5
    rounds: int | None = LONG
    profile: str = "paper"
    synchronous: bool = False

    def make(self) -> Policy[Any]:
        """The policy in its first state."""
        context = PolicyContext(
            dimension=self.dimension,
            clients=self.clients,
            device=self.device,
            seed=1,
            round_size=self.round_size,
            rounds=self.rounds,
        )
        checked = settings_of(self.name, self.settings, profile=self.profile, synchronous=self.synchronous)
        return find(self.name)(checked, context)

    def of_another_size(self) -> "PolicyUnderTest":
        """The same of a run with other numbers of clients, of updates a round and of parameters."""
        return replace(self, clients=12, round_size=4, dimension=3)


def random_rounds(
    policy: Policy[Any],
    seed: int,
    *,
    count: int = 8,
    everybody: bool = False,
    repeated: bool = False,
    first_version: int = 0,
) -> list[UpdateBatch]:
    """`count` rounds one after another, with all that this policy asks for.

    Any number of clients sends, 0 to N, or all N; each from any earlier version, and at most once a round, or as often
    as it happens where `repeated`.
    """
    rng = stream(seed, Stream.BATCHES)
    models = [_normal(rng, policy.device, policy.dimension) for _ in range(3)]
    batches = []
    for version in range(first_version, first_version + count):
        rows = policy.clients if everybody else int(rng.integers(0, policy.clients + 1))
        staleness = rng.integers(0, version + 1, rows)
        senders = rng.integers(0, policy.clients, rows) if repeated else rng.permutation(policy.clients)[:rows]
        batches.append(
            UpdateBatch(
                version=version,
                matrix_Kd=_normal(rng, policy.device, rows, policy.dimension),
                staleness_K=torch.from_numpy(staleness),
                num_examples_K=torch.from_numpy(rng.integers(1, 500, rows)),
                loss_K=torch.from_numpy(rng.random(rows).astype(np.float32)),
                client_ids_K=torch.from_numpy(senders),
                batch_sizes_K=torch.from_numpy(rng.integers(1, 64, rows)),
                extra_Kd=_normal(rng, policy.device, rows, policy.dimension) if policy.sends_extra else None,
                model_d=models[version % 3] if policy.needs_base_models else None,
                base_models=tuple(models[(version - int(s)) % 3] for s in staleness)
                if policy.needs_base_models
                else None,
                rate=0.25,
                local_rates_K=torch.full((rows,), 0.125),
            )
        )
    return batches


def equal_round(policy: Policy[Any], senders: Sequence[int], *, size: float = 1.0, version: int = 0) -> UpdateBatch:
    """These clients send the same g, all fresh and all alike; the numbers of g are about `size` large."""
    rows = len(senders)
    gradient_d = size * _normal(stream(30, Stream.BATCHES), policy.device, policy.dimension)
    ones_K = torch.ones(rows, dtype=torch.int64)
    matrix_Kd = gradient_d.repeat(rows, 1)
    return UpdateBatch(
        version=version,
        matrix_Kd=matrix_Kd,
        staleness_K=0 * ones_K,
        num_examples_K=7 * ones_K,
        loss_K=torch.ones(rows),
        client_ids_K=torch.tensor(senders, dtype=torch.int64),
        batch_sizes_K=ones_K,
        extra_Kd=matrix_Kd.clone() if policy.sends_extra else None,
        rate=0.25,
    )


def _normal(rng: Generator, device: torch.device, *shape: int) -> Tensor:
    return torch.from_numpy(rng.standard_normal(shape).astype(np.float32)).to(device)


def fresh(batch: UpdateBatch) -> UpdateBatch:
    """The same updates, all computed from the current model at the server's rate."""
    return replace(batch, staleness_K=torch.zeros_like(batch.staleness_K), base_models=None, local_rates_K=None)


def stretched(batch: UpdateBatch, factor: float = 1.0, copies: int = 1) -> UpdateBatch:
    """The same updates, vectors `factor` times as long, each number there `copies` times: a larger model."""

    def longer(rows: Tensor) -> Tensor:
        return (factor * rows).repeat_interleave(copies, dim=-1)

    extra_Kd = None if batch.extra_Kd is None else longer(batch.extra_Kd)
    batch = replace(batch, matrix_Kd=longer(batch.matrix_Kd), extra_Kd=extra_Kd)
    if batch.model_d is not None and batch.base_models is not None:
        models = {id(each): longer(each) for each in (batch.model_d, *batch.base_models)}
        bases = tuple(models[id(each)] for each in batch.base_models)
        batch = replace(batch, model_d=models[id(batch.model_d)], base_models=bases)
    return batch


def in_order(batch: UpdateBatch, order: Sequence[int]) -> UpdateBatch:
    """The same updates, arrived in another order; `order` holds the rows."""
    rows = list(order)
    columns = {name: values[rows] for name in BY_ROW if (values := getattr(batch, name)) is not None}
    bases = None if batch.base_models is None else tuple(batch.base_models[row] for row in rows)
    return replace(batch, **columns, base_models=bases)


def outcome(policy: Policy[Any], step: Step) -> tuple[Any, ...]:
    """All of a step, and of what is sent to clients after it, to the bit; a copy."""
    sent_d = policy.extra_d
    return (
        step.direction_d.detach().cpu().numpy().tobytes(),
        step.weights_K.numpy().tobytes(),
        step.rate_factor,
        step.counts,
        None if sent_d is None else sent_d.cpu().numpy().tobytes(),
    )


def run(policy: Policy[Any], batches: Iterable[UpdateBatch]) -> list[tuple[Any, ...]]:
    """The outcome of each of these rounds."""
    return [outcome(policy, policy.step(batch)) for batch in batches]


# --- problems: a sentence for each ---


def other(expected: list[tuple[Any, ...]], got: list[tuple[Any, ...]]) -> list[str]:
    """Rounds whose bits differ."""
    pairs = zip(expected, got, strict=True)
    return [f"other bits in round {number}" for number, (one, two) in enumerate(pairs) if one != two]


def misshapen(step: Step, policy: Policy[Any], batch: UpdateBatch) -> list[str]:
    """What `Step` promises of shapes, types and devices."""
    direction_d, weights_K = step.direction_d, step.weights_K
    wrong = {
        f"direction_d {tuple(direction_d.shape)}": direction_d.shape != (policy.dimension,),
        f"direction_d {direction_d.dtype}": direction_d.dtype != torch.float32,
        f"direction_d on {direction_d.device}": direction_d.device.type != policy.device.type,
        "direction_d with a gradient": direction_d.requires_grad,
        f"weights_K {tuple(weights_K.shape)}": weights_K.shape != (len(batch),),
        f"weights_K {weights_K.dtype}": weights_K.dtype != torch.float64,
        f"weights_K on {weights_K.device}": weights_K.device.type != "cpu",
        f"rate_factor {type(step.rate_factor).__name__}": not isinstance(step.rate_factor, float),
        f"counts {type(step.counts).__name__}": not isinstance(step.counts, bool),
    }
    return [f"{problem} in round {batch.version}" for problem, is_wrong in wrong.items() if is_wrong]


def senseless(step: Step, batch: UpdateBatch) -> list[str]:
    """Numbers that no step may have: what is not finite, a weight below 0, a rate that is not above 0."""
    wrong = {
        "direction_d is not finite": not bool(torch.isfinite(step.direction_d).all()),
        "weights_K is not finite": not bool(torch.isfinite(step.weights_K).all()),
        "weights_K has a number below 0": bool((step.weights_K < 0).any()),
        "rate_factor is not finite": not math.isfinite(step.rate_factor),
        "rate_factor is not above 0": step.rate_factor <= 0,
        f"metrics are more than {METRICS_MAX}": len(step.metrics) > METRICS_MAX,
        "metrics have a name with other characters than a-z0-9_./-": not all(map(METRIC_NAME.fullmatch, step.metrics)),
        "metrics have a value that is no finite number": not all(map(math.isfinite, step.metrics.values())),
    }
    return [f"{problem}, in round {batch.version}" for problem, is_wrong in wrong.items() if is_wrong]
