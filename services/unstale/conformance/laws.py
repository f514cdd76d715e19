"""Laws that hold for every policy, whatever it computes. One function a law: `law(subject) -> Finding`."""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from unstale.conformance.finding import Finding, off
from unstale.conformance.subject import (
    COLUMNS,
    LATE,
    Subject,
    fresh,
    in_order,
    random_rounds,
    run,
)
from unstale.policies import Policy, Step, UpdateBatch, describe

Law = Callable[[Subject], Finding]


def _first(expected: str, problems: list[str]) -> Finding:
    """Right when there is no problem; else the first one."""
    return Finding(expected=expected, got=problems[0] if problems else expected, passed=not problems)


def _other(expected: list[tuple[Any, ...]], got: list[tuple[Any, ...]]) -> list[str]:
    """A problem for each round whose bits differ."""
    pairs = zip(expected, got, strict=True)
    return [f"other bits in round {number}" for number, (one, two) in enumerate(pairs) if one != two]


def _misshapen(step: Step, policy: Policy[Any], batch: UpdateBatch) -> list[str]:
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


def _not_finite(step: Step, batch: UpdateBatch) -> list[str]:
    finite = {
        "direction_d": bool(torch.isfinite(step.direction_d).all()),
        "weights_K": bool(torch.isfinite(step.weights_K).all()),
        "rate_factor": math.isfinite(step.rate_factor),
    }
    return [f"{name} is not, in round {batch.version}" for name, fine in finite.items() if not fine]


def a_step_has_the_promised_shapes(subject: Subject) -> Finding:
    """direction_d [d] float32 on the device, weights_K [K] float64 on the CPU, a float, a bool."""
    policy = subject.make()
    problems = []
    for batch in random_rounds(policy, 1):
        problems += _misshapen(policy.step(batch), policy, batch)
    return _first("shapes and types of Step", problems)


def arguments_are_not_written_to(subject: Subject) -> Finding:
    """A batch is the same after the step, every field of it."""
    policy = subject.make()
    problems = []
    for batch in random_rounds(policy, 2):
        before = copy.deepcopy(batch)
        policy.step(batch)
        problems += [
            f"{each.name} changed in round {batch.version}"
            for each in fields(batch)
            if not _equal(getattr(batch, each.name), getattr(before, each.name))
        ]
    return _first("a batch as it was", problems)


def _equal(one: Any, two: Any) -> bool:
    if isinstance(one, tuple):
        return len(one) == len(two) and all(map(_equal, one, two))
    return torch.equal(one, two) if isinstance(one, Tensor) else bool(one == two)


def the_same_rounds_give_the_same_bits(subject: Subject) -> Finding:
    """Of two policies made alike."""
    first, second = subject.make(), subject.make()
    batches = random_rounds(first, 3)
    return _first("equal bits", _other(run(first, batches), run(second, copy.deepcopy(batches))))


def no_round_is_kept(subject: Subject) -> Finding:
    """The server uses the rows of a round again: what a policy remembers of them is a copy."""
    kept, expected = subject.make(), subject.make()
    batches = random_rounds(kept, 4)
    got = []
    for batch in copy.deepcopy(batches):
        got += run(kept, [batch])
        for name in ("matrix_Kd", "extra_Kd", *COLUMNS):
            values = getattr(batch, name)
            if values is not None:
                values.fill_(1)
    return _first("equal bits after rows are overwritten", _other(run(expected, batches), got))


def a_policy_continues_from_its_state(subject: Subject) -> Finding:
    """Saved in mid-sequence and loaded into a policy made alike; and what was saved is a copy."""
    whole, resumed = subject.make(), subject.make()
    batches = random_rounds(whole, 5)
    run(whole, batches[: len(batches) // 2])
    saved = whole.state_dict()
    expected = run(whole, batches[len(batches) // 2 :])
    resumed.load_state_dict(saved)
    got = run(resumed, batches[len(batches) // 2 :])
    return _first("equal bits after saving and loading", _other(expected, got))


def a_saved_state_is_not_shared(subject: Subject) -> Finding:
    """Who overwrites what `state_dict` gave, or what was loaded, changes no policy."""
    saving, loading, expected = subject.make(), subject.make(), subject.make()
    batches = random_rounds(saving, 6)
    half = len(batches) // 2
    for policy in (saving, expected):
        run(policy, batches[:half])
    state = saving.state_dict()
    loading.load_state_dict(state)
    _overwrite(state)
    right = run(expected, batches[half:])
    problems = _other(right, run(saving, batches[half:])) + _other(right, run(loading, batches[half:]))
    return _first("equal bits after the state is overwritten", problems)


def _overwrite(state: Any) -> None:
    if isinstance(state, Tensor):
        state.fill_(1)
    if isinstance(state, dict | list | tuple):
        for value in state.values() if isinstance(state, dict) else state:
            _overwrite(value)
    if isinstance(state, dict | list):
        state.clear()


def two_policies_share_nothing(subject: Subject) -> Finding:
    """What one of them sees does not reach the other."""
    one, two, alone = subject.make(), subject.make(), subject.make()
    batches, others = random_rounds(one, 7), random_rounds(one, 8)
    got = []
    for batch, other in zip(batches, others, strict=True):
        got += run(one, [batch])
        two.step(other)
    return _first("equal bits beside another policy", _other(run(alone, batches), got))


def empty_rounds_give_finite_steps(subject: Subject) -> Finding:
    """Before, between and after other rounds."""
    policy = subject.make()
    problems = []
    for batch in random_rounds(policy, 9):
        for each in (in_order(batch, []), batch, in_order(batch, [])):
            problems += _not_finite(policy.step(each), each)
    return _first("finite steps", problems)


def rounds_of_any_size_give_finite_steps(subject: Subject) -> Finding:
    """Availability rounds: 0 to N clients, all fresh."""
    policy = subject.make()
    everybody = random_rounds(policy, 10, everybody=True)
    problems = []
    for batch in everybody:
        some = in_order(fresh(batch), range(batch.version % (policy.clients + 1)))
        problems += _not_finite(policy.step(some), some)
    return _first("finite steps", problems)


def great_staleness_gives_finite_steps(subject: Subject) -> Finding:
    """Up to 5,000 rounds late."""
    policy = subject.make()
    problems = []
    for batch in random_rounds(policy, 11, first_version=LATE):
        problems += _not_finite(policy.step(batch), batch)
    return _first(f"finite steps at staleness up to {LATE:,}", problems)


def a_round_that_does_not_count_moves_nothing(subject: Subject) -> Finding:
    """Step.counts is False where the policy only waited."""
    policy = subject.make()
    problems = []
    for batch in random_rounds(policy, 12):
        step = policy.step(batch)
        if not step.counts and bool(step.direction_d.any()):
            problems.append(f"it moves in round {batch.version}")
    return _first("no step where none counts", problems)


def the_order_of_arrival_changes_rounding_only(subject: Subject) -> Finding:
    """The reverse order gives the same step; not so where the class says `order_matters = True`."""
    forwards, backwards = subject.make(), subject.make()
    if forwards.order_matters:
        return Finding(expected="order_matters", got="order_matters", passed=True)
    worst = 0.0
    for batch in random_rounds(forwards, 13):
        reverse = list(reversed(range(len(batch))))
        expected, got = forwards.step(batch), backwards.step(in_order(batch, reverse))
        worst = max(
            worst, off(got.direction_d * got.rate_factor, expected.direction_d * expected.rate_factor)
        )
        if len(batch) > 0:
            worst = max(worst, off(got.weights_K[reverse], expected.weights_K))
    return Finding(expected="the same within 1e-05", got=f"{worst:.0e} off", passed=worst <= 1e-5)


def what_is_sent_to_clients_is_never_overwritten(subject: Subject) -> Finding:
    """extra_d goes out while the next round runs; there is one exactly where `sends_extra` says so."""
    policy = subject.make()
    problems = []
    given = []
    for batch in random_rounds(policy, 14):
        extra_d = policy.extra_d
        if (extra_d is not None) != policy.sends_extra:
            problems.append(
                f"sends_extra {policy.sends_extra}, extra_d {'none' if extra_d is None else 'given'}"
            )
        if extra_d is not None:
            given.append((extra_d, extra_d.clone()))
        policy.step(batch)
    problems += [
        f"written to after round {number}" for number, pair in enumerate(given) if not torch.equal(*pair)
    ]
    return _first("extra_d as sends_extra says, never written to", problems)


def it_says_what_it_is(subject: Subject) -> Finding:
    """A summary, a source, and for each setting a description and where its default comes from."""
    about = describe(subject.name)
    missing = [f"no {what} of the policy" for what in ("summary", "source") if not getattr(about, what)]
    for setting in about.settings:
        missing += [
            f"no {what} of {setting.name!r}"
            for what in ("description", "source")
            if not getattr(setting, what)
        ]
    return _first("summary, source, described settings", missing)


LAWS: Mapping[str, Law] = {
    law.__name__.replace("_", " "): law
    for law in (
        a_step_has_the_promised_shapes,
        arguments_are_not_written_to,
        the_same_rounds_give_the_same_bits,
        no_round_is_kept,
        a_policy_continues_from_its_state,
        a_saved_state_is_not_shared,
        two_policies_share_nothing,
        empty_rounds_give_finite_steps,
        rounds_of_any_size_give_finite_steps,
        great_staleness_gives_finite_steps,
        a_round_that_does_not_count_moves_nothing,
        the_order_of_arrival_changes_rounding_only,
        what_is_sent_to_clients_is_never_overwritten,
        it_says_what_it_is,
    )
}
"""By the sentence that the report prints."""
