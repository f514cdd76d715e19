"""Golden sequences: rounds whose results are written down, and the policy that has to come to them.

A sequence holds w before its first round, and for each round the updates, what each of them counts, and w after it.
The policy is given the written w in every round, so that errors do not add up; what it remembers is its own.

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
from unstale.policies import Policy, Step, UpdateBatch, create
from unstale.policies.registry import find

TOLERANCE = 1e-6
"""How far float32 may be from the float64 result, of a model about 1 large."""

Rows = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round, all in order of arrival, and its expected result; weights and sent are compared where given."""

    rate: float
    clients: Sequence[int]
    staleness: Sequence[int]
    examples: Sequence[int]
    batch_sizes: Sequence[int]
    losses: Sequence[float]
    local_rates: Sequence[float]
    gradients: Rows
    extras: Rows | None = None  # the second vectors
    model: Sequence[float] | None = None  # w after it, [d]; None where it only fills the policy's memory and w stays
    weights: Sequence[float] | None = None  # of each update in the step, [K]
    sent: Sequence[float] | None = None  # to clients beside the model after the round
    counts: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequel:
    """A policy under some settings, w before the first round, and the rounds."""

    policy: str
    case: str  # in the report
    run: Mapping[str, Any]  # arguments of `policies.create`
    settings: Mapping[str, Any] = field(default_factory=dict)
    model: Sequence[float]
    rounds: Sequence[Round]


def written(policy: str) -> tuple[Sequel, ...]:
    """The sequences in `vectors/<policy>.json`, or in the file that the class names as `golden`; else none."""
    ours = files("unstale.conformance") / "vectors" / f"{policy}.json"
    if ours.is_file():
        return _read(policy, ours.read_text(encoding="utf-8"))
    its_own = find(policy).golden
    return () if its_own is None else _read(policy, its_own.read_text(encoding="utf-8"))


@cache
def _read(policy: str, text: str) -> tuple[Sequel, ...]:
    document = json.loads(text)
    run = {key: document[key] for key in ("clients", "dimension", "seed", "round_size", "rounds")}
    return tuple(
        Sequel(
            policy=policy,
            case=f"sequence, {case['loop']}"
            + ("" if case["profile"] == "paper" else f", {case['profile']}")
            + spelled(case["settings"]),
            run={**run, "profile": case["profile"]},
            settings=case["settings"],
            model=case["model"],
            rounds=tuple(Round(**step) for step in case["steps"]),
        )
        for case in document["cases"]
    )


def spelled(settings: Mapping[str, Any]) -> str:
    """Return settings for the name of a case: `, key=value` for each."""
    return "".join(f", {key}={value}" for key, value in settings.items())


def reproduces(sequel: Sequel, device: torch.device) -> Finding:
    """Play the rounds, and find the largest difference between a model, or what is sent, and what is written."""
    policy = create(sequel.policy, device=device, **sequel.run, **sequel.settings)
    models = [_float64(sequel.model)]
    expected = f"within {TOLERANCE:.0e} of the written results"
    worst = 0.0
    for version, played in enumerate(sequel.rounds):
        step = policy.step(_batch(policy, played, version, models))
        errors = _errors(played, step, policy, models[-1])
        for what, error in errors.items():
            if not error <= TOLERANCE:
                problem = f"{what} {error:.0e} off in round {version}"
                return Finding(expected=expected, got=problem, passed=False)
        if played.model is not None and step.counts != played.counts:
            problem = f"counts {step.counts} in round {version}"
            return Finding(expected=f"counts {played.counts}", got=problem, passed=False)
        worst = max(worst, *errors.values(), 0.0)
        models.append(models[-1] if played.model is None else _float64(played.model))
    return Finding(expected=expected, got=f"{worst:.0e} off", passed=True)


def _errors(played: Round, step: Step, policy: Policy[Any], model_d: Tensor) -> dict[str, float]:
    """How far off is what is written, by what it is. model_d: w before the round."""
    pairs = {}
    if played.model is not None:
        moved_d = played.rate * step.rate_factor * step.direction_d.cpu().double()
        pairs["model"] = (model_d - moved_d, played.model)
    if played.weights is not None:
        pairs["weights"] = (step.weights_K, played.weights)
    if played.sent is not None:
        assert policy.extra_d is not None, "nothing is sent"
        pairs["sent"] = (policy.extra_d.cpu().double(), played.sent)
    return {what: off(got, _float64(values)) for what, (got, values) in pairs.items()}


def _float64(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _batch(policy: Policy[Any], played: Round, version: int, models: Sequence[Tensor]) -> UpdateBatch:
    def vector(model_d: Tensor) -> Tensor:
        return model_d.to(policy.device, torch.float32)

    def matrix(rows: Rows) -> Tensor:
        return torch.tensor(rows, dtype=torch.float32, device=policy.device).reshape(len(rows), policy.dimension)

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
