"""Golden sequences: rounds whose results are written down, and the policy that has to come to them.

A sequence holds w before its first round, and for each round the updates and w after it. The policy is given the
written w in every round, so that errors do not add up; what it remembers is its own.

Legend: K updates of a round, in order of arrival; d parameters; N clients.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor

from unstale.conformance.finding import Finding, off
from unstale.policies import Policy, UpdateBatch, create

TOLERANCE = 1e-6
"""How far float32 may be from the float64 result, of a model about 1 large."""

Rows = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round, all in order of arrival, and what has to come of it.

    model: w after the round, [d]; None where the round only fills the policy's memory and w stays. sent: what clients
    are sent beside the model after the round; None where that is not looked at. extras: the second vectors, if any.
    """

    rate: float
    clients: Sequence[int]
    staleness: Sequence[int]
    examples: Sequence[int]
    batch_sizes: Sequence[int]
    losses: Sequence[float]
    local_rates: Sequence[float]
    gradients: Rows
    extras: Rows | None = None
    model: Sequence[float] | None = None
    sent: Sequence[float] | None = None
    counts: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequel:
    """A policy under some settings, w before the first round, and the rounds.

    run: what `policies.create` is told of the run. case: what the report calls it.
    """

    policy: str
    case: str
    run: Mapping[str, Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    model: Sequence[float]
    rounds: Sequence[Round]


@cache
def written(policy: str) -> tuple[Sequel, ...]:
    """The sequences in `vectors/<policy>.json`; none where there is no such file."""
    file = files("unstale.conformance") / "vectors" / f"{policy}.json"
    if not file.is_file():
        return ()
    told = json.loads(file.read_text(encoding="utf-8"))
    run = {key: told[key] for key in ("clients", "dimension", "seed", "round_size", "rounds")}
    return tuple(
        Sequel(
            policy=policy,
            case=f"sequence, {case['loop']}{_spelled(case)}",
            run={**run, "profile": case["profile"]},
            settings=case["settings"],
            model=case["model"],
            rounds=tuple(Round(**step) for step in case["steps"]),
        )
        for case in told["cases"]
    )


def _spelled(case: Mapping[str, Any]) -> str:
    profile = [case["profile"]] if case["profile"] != "paper" else []
    return "".join(
        f", {each}" for each in (*profile, *(f"{key}={value}" for key, value in case["settings"].items()))
    )


def reproduces(sequel: Sequel, device: torch.device) -> Finding:
    """Play the rounds, and find the largest difference between a model, or what is sent, and what is written."""
    policy = create(sequel.policy, device=device, **sequel.run, **sequel.settings)
    models = [_float64(sequel.model)]
    expected = f"within {TOLERANCE:.0e} of the written results"
    worst = 0.0
    for version, played in enumerate(sequel.rounds):
        step = policy.step(_batch(policy, played, version, models))
        errors = [0.0]
        if played.model is not None:
            moved_d = played.rate * step.rate_factor * step.direction_d.cpu().double()
            errors.append(off(models[-1] - moved_d, _float64(played.model)))
        if played.sent is not None:
            assert policy.extra_d is not None, "nothing is sent"
            errors.append(off(policy.extra_d.cpu().double(), _float64(played.sent)))
        if max(errors) > TOLERANCE:
            return Finding(expected=expected, got=f"{max(errors):.0e} off in round {version}", passed=False)
        if played.model is not None and step.counts != played.counts:
            said = f"counts {step.counts} in round {version}"
            return Finding(expected=f"counts {played.counts}", got=said, passed=False)
        worst = max(worst, *errors)
        models.append(models[-1] if played.model is None else _float64(played.model))
    return Finding(expected=expected, got=f"{worst:.0e} off", passed=True)


def _float64(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _batch(policy: Policy[Any], played: Round, version: int, models: Sequence[Tensor]) -> UpdateBatch:
    def vector(model_d: Tensor) -> Tensor:
        return model_d.to(policy.device, torch.float32)

    def matrix(rows: Rows) -> Tensor:
        return torch.tensor(rows, dtype=torch.float32, device=policy.device).reshape(
            len(rows), policy.dimension
        )

    def column(values: Sequence[float], dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.tensor(values, dtype=dtype)

    bases = tuple(vector(models[version - s]) for s in played.staleness)
    return UpdateBatch(
        version=version,
        matrix_Kd=matrix(played.gradients),
        staleness_K=column(played.staleness),
        num_examples_K=column(played.examples),
        loss_K=column(played.losses, torch.float32),
        client_ids_K=column(played.clients),
        batch_sizes_K=column(played.batch_sizes),
        extra_Kd=None if played.extras is None else matrix(played.extras),
        model_d=vector(models[version]) if policy.needs_base_models else None,
        base_models=bases if policy.needs_base_models else None,
        rate=played.rate,
        local_rates_K=column(played.local_rates, torch.float32),
    )
