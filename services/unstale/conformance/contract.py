"""Laws of the interface: shapes, purity, state and random numbers of any policy."""

import copy
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from unstale.conformance.finding import Finding, no_problems
from unstale.conformance.policy_under_test import COLUMNS, PolicyUnderTest, random_rounds, run
from unstale.conformance.problems import misshapen, other


def a_step_has_the_promised_shapes(tested: PolicyUnderTest) -> Finding:
    """direction_d [d] float32 on the device, weights_K [K] float64 on the CPU, a float, a bool."""
    policy = tested.make()
    problems = []
    for batch in random_rounds(policy, 1):
        problems += misshapen(policy.step(batch), policy, batch)
    return no_problems("shapes and types of Step", problems)


def arguments_are_not_written_to(tested: PolicyUnderTest) -> Finding:
    """Every field of the batch is unchanged after the step."""
    policy = tested.make()
    problems = []
    for batch in random_rounds(policy, 2):
        before = copy.deepcopy(batch)
        policy.step(batch)
        problems += [
            f"{each.name} changed in round {batch.version}"
            for each in fields(batch)
            if not _equal(getattr(batch, each.name), getattr(before, each.name))
        ]
    return no_problems("a batch as it was", problems)


def _equal(one: Any, two: Any) -> bool:
    if isinstance(one, tuple):
        return len(one) == len(two) and all(map(_equal, one, two))
    return torch.equal(one, two) if isinstance(one, Tensor) else bool(one == two)


def the_same_rounds_give_the_same_bits(tested: PolicyUnderTest) -> Finding:
    """Two policies with equal settings give equal bits."""
    first, second = tested.make(), tested.make()
    batches = random_rounds(first, 3)
    return no_problems("equal bits", other(run(first, batches), run(second, copy.deepcopy(batches))))


def no_round_is_kept(tested: PolicyUnderTest) -> Finding:
    """The server reuses the rows of a round, so a policy must copy the rows that it remembers."""
    kept, expected = tested.make(), tested.make()
    batches = random_rounds(kept, 4)
    got = []
    for batch in copy.deepcopy(batches):
        got += run(kept, [batch])
        for name in ("matrix_Kd", "extra_Kd", *COLUMNS):
            values = getattr(batch, name)
            if values is not None:
                values.fill_(1)
    return no_problems("equal bits after rows are overwritten", other(run(expected, batches), got))


def two_policies_share_nothing(tested: PolicyUnderTest) -> Finding:
    """The rounds of one policy do not affect the steps of another one."""
    one, two, alone = tested.make(), tested.make(), tested.make()
    batches, of_two = random_rounds(one, 7), random_rounds(one, 8)
    got = []
    for batch, another in zip(batches, of_two, strict=True):
        got += run(one, [batch])
        two.step(another)
    return no_problems("equal bits beside another policy", other(run(alone, batches), got))


def a_round_that_does_not_count_moves_nothing(tested: PolicyUnderTest) -> Finding:
    """`Step.counts` is False where the policy only waits, and then the direction is 0."""
    policy = tested.make()
    problems = []
    for batch in random_rounds(policy, 12):
        step = policy.step(batch)
        if not step.counts and bool(step.direction_d.any()):
            problems.append(f"it moves in round {batch.version}")
    return no_problems("no step where none counts", problems)


def what_is_sent_to_clients_is_never_overwritten(tested: PolicyUnderTest) -> Finding:
    """`extra_d` is sent while the next round runs, so it is read-only; it exists exactly where `sends_extra` is set."""
    policy = tested.make()
    problems = []
    given = []
    for batch in random_rounds(policy, 14):
        extra_d = policy.extra_d
        if (extra_d is not None) != policy.sends_extra:
            problems.append(f"sends_extra {policy.sends_extra}, extra_d {'none' if extra_d is None else 'given'}")
        if extra_d is not None:
            given.append((extra_d, extra_d.clone()))
        policy.step(batch)
    problems += [f"written to after round {number}" for number, pair in enumerate(given) if not torch.equal(*pair)]
    return no_problems("extra_d as sends_extra says, never written to", problems)


def no_random_number_is_drawn_but_from_streams(tested: PolicyUnderTest) -> Finding:
    """A policy draws from `unstale.seeds.stream` only and leaves PyTorch's generators unchanged."""
    policy = tested.make()
    batches = random_rounds(policy, 19)
    before = _generators(policy.device)
    run(policy, batches)
    same = all(map(torch.equal, before, _generators(policy.device)))
    return no_problems("generators as they were", [] if same else ["PyTorch's generator has moved"])


def _generators(device: torch.device) -> list[Tensor]:
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return states
