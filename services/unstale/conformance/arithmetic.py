"""Laws of arithmetic: a policy steps along the gradients, by a bounded length.

Three class attributes declare exceptions: `order_matters`, `longest_step` and `is_homogeneous`.
Legend: K updates of a round, in order of arrival; d parameters; N clients.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from unstale.conformance.finding import Finding, law, no_problems, off
from unstale.conformance.policy_under_test import (
    LATE,
    PolicyUnderTest,
    equal_round,
    fresh,
    in_order,
    misshapen,
    random_rounds,
    senseless,
    stretched,
)
from unstale.policies import Policy, Step, UpdateBatch

AGAIN = 50
"""Repetitions of one round."""

COPIES = 10_001
"""Copies of each number of an update in a large model."""

SIZES = (1e-30, 1.0, 1e18)
"""Magnitudes of the numbers of an update: the square of the smallest underflows in float32."""

ROUNDING = 1e-5
ROUNDING_OF_MANY = 1e-4
"""Tolerance where weights are exponentials of sums over many numbers."""


@law("finite steps")
def empty_rounds_give_finite_steps(tested: PolicyUnderTest) -> Iterator[str]:
    """Empty rounds before, between and after other rounds."""
    policy = tested.make()
    for batch in random_rounds(policy, 9):
        for each in (in_order(batch, []), batch, in_order(batch, [])):
            yield from senseless(policy.step(each), each)


@law("finite steps")
def rounds_of_any_size_give_finite_steps(tested: PolicyUnderTest) -> Iterator[str]:
    """Availability rounds: 0 to N clients, all fresh."""
    policy = tested.make()
    for batch in random_rounds(policy, 10, everybody=True):
        some = in_order(fresh(batch), range(batch.version % (policy.clients + 1)))
        yield from senseless(policy.step(some), some)


@law(f"finite steps at staleness up to {LATE:,}")
def great_staleness_gives_finite_steps(tested: PolicyUnderTest) -> Iterator[str]:
    """Staleness of up to 5,000 rounds."""
    policy = tested.make()
    for batch in random_rounds(policy, 11, first_version=LATE):
        yield from senseless(policy.step(batch), batch)


@law("finite steps")
def tiny_and_huge_updates_give_finite_steps(tested: PolicyUnderTest) -> Iterator[str]:
    """Magnitudes differ within a round and between rounds."""
    policy = tested.make()
    for batch in random_rounds(policy, 21):
        sizes_K = torch.tensor([SIZES[(batch.version + row) % len(SIZES)] for row in range(len(batch))])
        sized = replace(batch, matrix_Kd=batch.matrix_Kd * sizes_K.to(policy.device)[:, None])
        yield from senseless(policy.step(sized), sized)


@law("finite steps")
def updates_of_a_client_that_is_there_twice_are_taken(tested: PolicyUnderTest) -> Iterator[str]:
    """A client that does not wait for the round may contribute to it twice."""
    policy = tested.make()
    for batch in random_rounds(policy, 16, repeated=True):
        step = policy.step(batch)
        yield from misshapen(step, policy, batch)
        yield from senseless(step, batch)


def equal_changes_of_buffers_are_made_as_they_are(tested: PolicyUnderTest) -> Finding:
    """If the buffers of all clients change equally, so do those of the model, for any weights."""
    policy = tested.make()
    worst = 0.0
    for batch in random_rounds(policy, 18):
        weights_K = policy.step(batch).weights_K
        if len(batch) > 0:
            change_b = torch.linspace(-1.0, 2.0, 5, device=policy.device)
            got_b = policy.buffers_change(change_b.repeat(len(batch), 1), weights_K)
            worst = max(worst, off(got_b, change_b))
    return Finding(expected="the same change", got=f"{worst:.0e} off", passed=worst <= ROUNDING)


def the_order_of_arrival_changes_rounding_only(tested: PolicyUnderTest) -> Finding:
    """The reverse order gives the same step, unless the class sets `order_matters = True`."""
    forwards, backwards = tested.make(), tested.make()
    if forwards.order_matters:
        return no_problems("order_matters", [])
    worst = 0.0
    for batch in random_rounds(forwards, 13):
        reverse = list(reversed(range(len(batch))))
        expected, got = forwards.step(batch), backwards.step(in_order(batch, reverse))
        worst = max(worst, off(got.direction_d * got.rate_factor, expected.direction_d * expected.rate_factor))
        worst = max(worst, off(got.weights_K[reverse], expected.weights_K))
    return Finding(expected="the same within 1e-05", got=f"{worst:.0e} off", passed=worst <= 1e-5)


@law("c * g with 0 < c <= longest_step, and c the sum of the weights")
def equal_fresh_updates_are_a_step_along_them(tested: PolicyUnderTest) -> Iterator[str]:
    """If all clients send the same g, or one client alone sends it, the step is c * g with 0 < c <= longest_step.

    c is the sum of the weights. This holds for the smallest and largest g of float32, and for other N.
    """
    for each in (tested, tested.of_another_size()):
        for size in SIZES if tested.make().is_homogeneous else (1.0,):
            for senders in (range(each.clients), [each.clients - 1]):
                policy = each.make()
                batch = equal_round(policy, senders, size=size)
                which = f"{len(batch)} of {each.clients} clients, numbers about {size:g}"
                yield from (f"{one}: {which}" for one in _not_along(policy, policy.step(batch), batch))


def _not_along(policy: Policy[Any], step: Step, batch: UpdateBatch) -> list[str]:
    gradient_d = batch.matrix_Kd[0].cpu().double()
    moved_d = step.rate_factor * step.direction_d.cpu().double()
    along = float(moved_d @ gradient_d / (gradient_d @ gradient_d))
    rest = float((moved_d - along * gradient_d).abs().max() / gradient_d.abs().max())
    weight = step.rate_factor * float(step.weights_K.sum())
    least = 0.0 if step.counts else -ROUNDING
    wrong = {
        "the step is not along g": not rest <= ROUNDING * max(1.0, abs(along)),
        f"the step is {along:g} g": not least < along <= policy.longest_step * (1 + ROUNDING),
        f"the step is {along:g} g, the weights say {weight:g}": not abs(along - weight) <= ROUNDING,
    }
    return [problem for problem, is_wrong in wrong.items() if is_wrong]


def the_same_round_again_and_again_gives_the_same_step(tested: PolicyUnderTest) -> Finding:
    """If all clients send the same fresh g in every round, the lengths of the steps converge, and not to 0."""
    policy = tested.make()
    lengths = []
    for version in range(AGAIN):
        step = policy.step(equal_round(policy, range(policy.clients), version=version))
        lengths.append(step.rate_factor * float(step.direction_d.double().norm()))
    late = lengths[-10:]
    rests = 0.95 * max(late) <= min(late) and 0.5 * lengths[0] <= late[-1]
    return Finding(
        expected="steps of one length in the end",
        got=f"{lengths[0]:g} long at first, {late[0]:g} to {late[-1]:g} in the end",
        passed=late[-1] > 0 and rests,
    )


def updates_twice_as_long_give_a_step_twice_as_long(tested: PolicyUnderTest) -> Finding:
    """Also for other powers of two, unless the class sets `is_homogeneous = False`."""
    if not tested.make().is_homogeneous:
        return no_problems("is_homogeneous = False", [])
    factors = (2.0**-5, 2.0, 2.0**6)
    problems = [one for factor in factors for one in _other_steps(tested.make(), tested.make(), factor=factor)]
    return no_problems("the same weights, a longer step", problems)


def a_large_model_steps_as_a_small_one(tested: PolicyUnderTest) -> Finding:
    """If each number of the updates is repeated, so are those of the step, unless `is_homogeneous = False`."""
    small, large = tested.make(), replace(tested, dimension=COPIES * tested.dimension).make()
    if not small.is_homogeneous:
        return no_problems("is_homogeneous = False", [])
    return no_problems("the same step", list(_other_steps(small, large, copies=COPIES, count=5)))


def _other_steps(
    plain: Policy[Any], stretching: Policy[Any], *, factor: float = 1.0, copies: int = 1, count: int = 8
) -> Iterator[str]:
    """Rounds in which the step for stretched updates is not the stretched step."""
    for batch in random_rounds(plain, 17, count=count):
        expected, got = plain.step(batch), stretching.step(stretched(batch, factor, copies))
        expected_d = (factor * expected.rate_factor * expected.direction_d).repeat_interleave(copies)
        error = off(got.rate_factor * got.direction_d / factor, expected_d / factor)
        error = max(error, off(got.weights_K, expected.weights_K))
        if not error <= (ROUNDING if copies == 1 else ROUNDING_OF_MANY):
            yield f"{error:.0e} off in round {batch.version}"
