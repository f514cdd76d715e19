"""Laws of the policy interface. The report prints the name of each function here, and the expected result."""

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
from unstale.training.registry import REGISTRY as TRAININGS


@law("shapes and types of Step")
def a_step_has_the_promised_shapes(tested: PolicyUnderTest) -> Iterator[str]:
    """direction_d [d] float32 on the device, weights_K [K] float64 on the CPU, rate_factor float, counts bool."""
    policy = tested.make()
    for batch in random_rounds(policy, seed=1):
        yield from misshapen(policy.step(batch), policy, batch)


@law("an unchanged batch")
def arguments_are_not_written_to(tested: PolicyUnderTest) -> Iterator[str]:
    """Every field of the batch is unchanged after the step."""
    policy = tested.make()
    for batch in random_rounds(policy, seed=2):
        before = copy.deepcopy(batch)
        policy.step(batch)
        for field in fields(batch):
            if not _equal(getattr(batch, field.name), getattr(before, field.name)):
                yield f"{field.name} changed in round {batch.version}"


def _equal(one: Any, two: Any) -> bool:
    if isinstance(one, tuple):
        return len(one) == len(two) and all(map(_equal, one, two))
    return torch.equal(one, two) if isinstance(one, Tensor) else bool(one == two)


@law("equal bits")
def the_same_rounds_give_the_same_bits(tested: PolicyUnderTest) -> list[str]:
    """Two policies with equal settings give equal bits."""
    first, second = tested.make(), tested.make()
    batches = random_rounds(first, seed=3)
    return other(run(first, batches), run(second, copy.deepcopy(batches)))


@law("equal bits after rows are overwritten")
def remembered_rows_are_copied(tested: PolicyUnderTest) -> list[str]:
    """The server reuses the rows of a round, so a policy must copy the rows that it remembers."""
    policy, expected = tested.make(), tested.make()
    batches = random_rounds(policy, seed=4)
    got = []
    for batch in copy.deepcopy(batches):
        got += run(policy, [batch])
        for name in BY_ROW:
            values = getattr(batch, name)
            if values is not None:
                values.fill_(1)
    return other(run(expected, batches), got)


@law("equal bits beside another policy")
def two_policies_share_nothing(tested: PolicyUnderTest) -> list[str]:
    """The rounds of one policy do not affect the steps of another one."""
    one, two, alone = tested.make(), tested.make(), tested.make()
    batches, other_batches = random_rounds(one, seed=7), random_rounds(one, seed=8)
    got = []
    for batch, other_batch in zip(batches, other_batches, strict=True):
        got += run(one, [batch])
        two.step(other_batch)
    return other(run(alone, batches), got)


@law("direction 0 where counts is False")
def a_round_that_does_not_count_moves_nothing(tested: PolicyUnderTest) -> Iterator[str]:
    """`Step.counts` is False if the policy only waits for more updates; then the direction is 0."""
    policy = tested.make()
    for batch in random_rounds(policy, seed=12):
        step = policy.step(batch)
        if not step.counts and bool(step.direction_d.any()):
            yield f"direction not 0 in round {batch.version}"


@law("extra_d exactly if sends_extra, never overwritten")
def extra_vectors_are_never_overwritten(tested: PolicyUnderTest) -> Iterator[str]:
    """`extra_d` is sent while the next round runs, so it is read-only; it exists exactly if `sends_extra` is set."""
    policy = tested.make()
    sent = []
    for batch in random_rounds(policy, seed=14):
        extra_d = policy.extra_d
        if (extra_d is not None) != policy.sends_extra:
            yield f"sends_extra {policy.sends_extra}, extra_d {'none' if extra_d is None else 'given'}"
        if extra_d is not None:
            sent.append((extra_d, extra_d.clone()))
        policy.step(batch)
    for number, (sent_d, copy_d) in enumerate(sent):
        if not torch.equal(sent_d, copy_d):
            yield f"extra_d of round {number} is overwritten"


@law("unchanged generators")
def random_numbers_come_from_streams_only(tested: PolicyUnderTest) -> Iterator[str]:
    """A policy draws from `unstale.seeds.stream` only and leaves PyTorch's generators unchanged."""
    policy = tested.make()
    batches = random_rounds(policy, seed=19)
    before = _generators(policy.device)
    run(policy, batches)
    if not all(map(torch.equal, before, _generators(policy.device))):
        yield "PyTorch's generator is advanced"


def _generators(device: torch.device) -> list[Tensor]:
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return states


@law("summary, source, described settings")
def the_policy_and_its_settings_are_described(tested: PolicyUnderTest) -> Iterator[str]:
    """The policy has a summary and a source; each setting has a description and a source of its default."""
    about = describe(tested.name)
    yield from (f"no {part} of the policy" for part in ("summary", "source") if not getattr(about, part))
    for setting in about.settings:
        for part in ("description", "source"):
            if not getattr(setting, part):
                yield f"no {part} of {setting.name!r}"


@law("known names")
def named_parts_and_settings_exist(tested: PolicyUnderTest) -> Iterator[str]:
    """Training, loops and settings with defaults exist; no setting has a reserved name."""
    policy = find(tested.name)
    settings = policy.Settings.model_fields
    if policy.training not in (None, *TRAININGS.names()):
        yield f"unknown training {policy.training!r}"
    yield from (f"unknown loop {loop!r}" for loop in policy.loops if loop not in get_args(Loop))
    yield from (f"reserved name {name!r} of a setting" for name in settings if name in RESERVED)
    for defaults in (policy.synchronous_defaults, policy.reference_defaults, policy.example_settings):
        yield from (f"default of unknown setting {name!r}" for name in defaults if name not in settings)
