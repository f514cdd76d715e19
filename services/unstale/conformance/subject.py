"""The policy that is looked at, and the rounds that it is given.

Legend: K updates of a round, in order of arrival; d parameters; N clients.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unstale.policies import Policy, Step, UpdateBatch, create
from unstale.seeds import Generator, Stream, stream

CLIENTS = 5
DIMENSION = 7
ROUNDS = 8
LATE = 5000
"""The highest staleness that is tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A registered policy under some settings, on a device."""

    name: str
    device: torch.device
    settings: Mapping[str, Any] = field(default_factory=dict)

    def make(self) -> Policy[Any]:
        """The policy in its first state, of a run with `CLIENTS` clients and `DIMENSION` parameters."""
        return create(
            self.name,
            dimension=DIMENSION,
            clients=CLIENTS,
            device=self.device,
            seed=1,
            round_size=CLIENTS,
            rounds=ROUNDS,
            **self.settings,
        )


def random_rounds(
    policy: Policy[Any], seed: int, *, everybody: bool = False, first_version: int = 0
) -> list[UpdateBatch]:
    """`ROUNDS` rounds one after another, with all that this policy asks for.

    Any number of clients sends, 0 to N, or all N; each at most once a round, from any earlier version.
    """
    rng = stream(seed, Stream.BATCHES)
    models = [_normal(rng, policy.device, policy.dimension) for _ in range(3)]
    batches = []
    for version in range(first_version, first_version + ROUNDS):
        rows = policy.clients if everybody else int(rng.integers(0, policy.clients + 1))
        staleness = rng.integers(0, version + 1, rows)
        batches.append(
            UpdateBatch(
                version=version,
                matrix_Kd=_normal(rng, policy.device, rows, policy.dimension),
                staleness_K=torch.from_numpy(staleness),
                num_examples_K=torch.from_numpy(rng.integers(1, 500, rows)),
                loss_K=torch.from_numpy(rng.random(rows).astype(np.float32)),
                client_ids_K=torch.from_numpy(rng.permutation(policy.clients)[:rows]),
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


def _normal(rng: Generator, device: torch.device, *shape: int) -> Tensor:
    return torch.from_numpy(rng.standard_normal(shape).astype(np.float32)).to(device)


def fresh(batch: UpdateBatch) -> UpdateBatch:
    """The same updates, all computed from the current model at the server's rate."""
    return replace(
        batch, staleness_K=torch.zeros_like(batch.staleness_K), base_models=None, local_rates_K=None
    )


def in_order(batch: UpdateBatch, order: Sequence[int]) -> UpdateBatch:
    """The same updates, arrived in another order; `order` holds the rows."""
    rows = list(order)
    columns = {
        name: getattr(batch, name)[rows]
        for name in ("matrix_Kd", "extra_Kd", *COLUMNS)
        if getattr(batch, name) is not None
    }
    bases = None if batch.base_models is None else tuple(batch.base_models[row] for row in rows)
    return replace(batch, **columns, base_models=bases)


COLUMNS = (
    "staleness_K",
    "num_examples_K",
    "loss_K",
    "client_ids_K",
    "batch_sizes_K",
    "local_rates_K",
)
"""What is known of each update beside its vectors."""


def bits(step: Step) -> tuple[Any, ...]:
    """All of a step, to the bit; a copy."""
    return (
        step.direction_d.detach().cpu().numpy().tobytes(),
        step.weights_K.numpy().tobytes(),
        step.rate_factor,
        step.counts,
    )


def run(policy: Policy[Any], batches: Iterable[UpdateBatch]) -> list[tuple[Any, ...]]:
    """The bits of each step of these rounds, and of what is sent to clients after it."""
    results = []
    for batch in batches:
        step = policy.step(batch)
        sent = None if policy.extra_d is None else policy.extra_d.cpu().numpy().tobytes()
        results.append((*bits(step), sent))
    return results
