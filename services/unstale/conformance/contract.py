"""Laws of the interface of a policy: class attributes, shapes, purity and random numbers."""

import copy
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, get_args

import torch
from torch import Tensor

from unstale.conformance.finding import law
from unstale.conformance.policy_under_test import BY_ROW, PolicyUnderTest, misshapen, other, random_rounds, run
from unstale.policies import describe
from unstale.policies.policy import Loop
from unstale.policies.registry import RESERVED, find
from unstale.training.registry import TRAININGS


@law("shapes and types of Step")
def a_step_has_the_promised_shapes(tested: PolicyUnderTest) -> Iterator[str]:
    """direction_d [d] float32 on the device, weights_K [K] float64 on the CPU, a float, a bool."""
    policy = tested.make()
    for batch in random_rounds(policy, 1):
        yield from misshapen(policy.step(batch), policy, batch)


@law("a batch as it was")
def arguments_are_not_written_to(tested: PolicyUnderTest) -> Iterator[str]:
    """Every field of the batch is unchanged after the step."""
    policy = tested.make()
    for batch in random_rounds(policy, 2):
        before = copy.deepcopy(batch)
        policy.step(batch)
        for each in fields(batch):
            if not _equal(getattr(batch, each.name), getattr(before, each.name)):
                yield f"{each.name} changed in round {batch.version}"


def _equal(one: Any, two: Any) -> bool:
    if isinstance(one, tuple):
        return len(one) == len(two) and all(map(_equal, one, two))
    return torch.equal(one, two) if isinstance(one, Tensor) else bool(one == two)


@law("equal bits")
def the_same_rounds_give_the_same_bits(tested: PolicyUnderTest) -> list[str]:
    """Two policies with equal settings give equal bits."""
    first, second = tested.make(), tested.make()
    batches = random_rounds(first, 3)
    return other(run(first, batches), run(second, copy.deepcopy(batches)))


@law("equal bits after rows are overwritten")
def no_round_is_kept(tested: PolicyUnderTest) -> list[str]:
    """The server reuses the rows of a round, so a policy must copy the rows that it remembers."""
    kept, expected = tested.make(), tested.make()
    batches = random_rounds(kept, 4)
    got = []
    for batch in copy.deepcopy(batches):
        got += run(kept, [batch])
        for name in BY_ROW:
            values = getattr(batch, name)
            if values is not None:
                values.fill_(1)
    return other(run(expected, batches), got)


@law("equal bits beside another policy")
def two_policies_share_nothing(tested: PolicyUnderTest) -> list[str]:
    """The rounds of one policy do not affect the steps of another one."""
    one, two, alone = tested.make(), tested.make(), tested.make()
    batches, of_two = random_rounds(one, 7), random_rounds(one, 8)
    got = []
    for batch, another in zip(batches, of_two, strict=True):
        got += run(one, [batch])
        two.step(another)
    return other(run(alone, batches), got)


@law("no step where none counts")
def a_round_that_does_not_count_moves_nothing(tested: PolicyUnderTest) -> Iterator[str]:
    """`Step.counts` is False where the policy only waits, and then the direction is 0."""
    policy = tested.make()
    for batch in random_rounds(policy, 12):
        step = policy.step(batch)
        if not step.counts and bool(step.direction_d.any()):
            yield f"it moves in round {batch.version}"


@law("extra_d as sends_extra says, never written to")
def what_is_sent_to_clients_is_never_overwritten(tested: PolicyUnderTest) -> Iterator[str]:
    """`extra_d` is sent while the next round runs, so it is read-only; it exists exactly where `sends_extra` is set."""
    policy = tested.make()
    given = []
    for batch in random_rounds(policy, 14):
        extra_d = policy.extra_d
        if (extra_d is not None) != policy.sends_extra:
            yield f"sends_extra {policy.sends_extra}, extra_d {'none' if extra_d is None else 'given'}"
        if extra_d is not None:
            given.append((extra_d, extra_d.clone()))
        policy.step(batch)
    for number, (sent_d, copy_d) in enumerate(given):
        if not torch.equal(sent_d, copy_d):
            yield f"written to after round {number}"


@law("generators as they were")
def no_random_number_is_drawn_but_from_streams(tested: PolicyUnderTest) -> Iterator[str]:
    """A policy draws from `unstale.seeds.stream` only and leaves PyTorch's generators unchanged."""
    policy = tested.make()
    batches = random_rounds(policy, 19)
    before = _generators(policy.device)
    run(policy, batches)
    if not all(map(torch.equal, before, _generators(policy.device))):
        yield "PyTorch's generator has moved"


def _generators(device: torch.device) -> list[Tensor]:
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return states


@law("summary, source, described settings")
def it_says_what_it_is(tested: PolicyUnderTest) -> Iterator[str]:
    """The policy has a summary and a source; each setting has a description and a source of its default."""
    about = describe(tested.name)
    yield from (f"no {what} of the policy" for what in ("summary", "source") if not getattr(about, what))
    for setting in about.settings:
        for what in ("description", "source"):
            if not getattr(setting, what):
                yield f"no {what} of {setting.name!r}"


@law("names that are known")
def what_it_names_is_known(tested: PolicyUnderTest) -> Iterator[str]:
    """Its training, loops and settings exist, and no setting has a reserved name."""
    policy = find(tested.name)
    fields = policy.Settings.model_fields
    if policy.training not in (None, *TRAININGS):
        yield f"unknown training {policy.training!r}"
    yield from (f"unknown loop {loop!r}" for loop in policy.loops if loop not in get_args(Loop))
    yield from (f"no setting may be called {name!r}" for name in fields if name in RESERVED)
    for defaults in (policy.synchronous_defaults, policy.reference_defaults, policy.example_settings):
        yield from (f"a default for {name!r}, which is no setting" for name in defaults if name not in fields)
