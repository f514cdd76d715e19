"""What can be wrong with a step or with a run of a policy. Each function gives a sentence for each problem.

Legend: K updates of a round, in order of arrival; d parameters.
"""

import math
from typing import Any

import torch

from unstale.conformance.policy_under_test import LONG, PolicyUnderTest, outcome, random_rounds, run
from unstale.policies import Policy, Step, UpdateBatch


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
    }
    return [f"{problem}, in round {batch.version}" for problem, is_wrong in wrong.items() if is_wrong]


def of_a_run(tested: PolicyUnderTest) -> list[str]:
    """Of a long sequence of random rounds: its steps, and whether it goes on from its state.

    An early state is loaded into a new policy, the one of the middle into a policy that has seen other rounds.
    """
    whole, used = tested.make(), tested.make()
    run(used, random_rounds(used, 6))
    loading = {1: tested.make(), LONG // 2: used}
    batches = random_rounds(whole, 5, count=LONG)
    problems, expected, saved = [], [], {}
    for number, batch in enumerate(batches):
        if number in loading:
            saved[number] = whole.state_dict()
        step = whole.step(batch)
        expected.append(outcome(whole, step))
        problems += misshapen(step, whole, batch) + senseless(step, batch)
    for number, policy in loading.items():
        policy.load_state_dict(saved[number])
        differences = other(expected[number:], run(policy, batches[number:]))
        problems += [f"{problem} after loading a state" for problem in differences]
    return problems
