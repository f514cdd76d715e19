"""Laws of what a policy remembers, and of the runs that it can be part of."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal, get_args, get_origin

from torch import Tensor

from unstale.conformance.finding import law
from unstale.conformance.policy_under_test import (
    LONG,
    PolicyUnderTest,
    misshapen,
    other,
    outcome,
    random_rounds,
    run,
    senseless,
)
from unstale.errors import UserError
from unstale.policies.registry import PROFILES, find

_PLAIN = (bool, int, float, str, type(None))


@law("equal bits after saving and loading")
def a_policy_continues_from_its_state(tested: PolicyUnderTest) -> list[str]:
    """Saved in mid-sequence and loaded; it replaces all that was there, and what was saved is a copy."""
    return _of_a_run(tested)


@law("equal bits after the state is overwritten")
def a_saved_state_is_not_shared(tested: PolicyUnderTest) -> list[str]:
    """Who overwrites what `state_dict` gave, or what was loaded, changes no policy."""
    saving, loading, expected = tested.make(), tested.make(), tested.make()
    batches = random_rounds(saving, 6)
    half = len(batches) // 2
    for policy in (saving, expected):
        run(policy, batches[:half])
    state = saving.state_dict()
    loading.load_state_dict(state)
    _overwrite(state)
    right = run(expected, batches[half:])
    return other(right, run(saving, batches[half:])) + other(right, run(loading, batches[half:]))


def _overwrite(state: Any) -> None:
    if isinstance(state, Tensor):
        state.fill_(1)
    if isinstance(state, dict | list | tuple):
        for value in state.values() if isinstance(state, dict) else state:
            _overwrite(value)
    if isinstance(state, dict | list):
        state.clear()


@law("tensors, numbers, texts, lists, dictionaries")
def a_state_holds_plain_values(tested: PolicyUnderTest) -> Iterator[str]:
    """Tensors, numbers, texts, truth values, None, and lists and dictionaries of them: what a checkpoint holds."""
    policy = tested.make()
    run(policy, random_rounds(policy, 15))
    return _not_plain("state", policy.state_dict())


def _not_plain(where: str, value: Any) -> Iterator[str]:
    if isinstance(value, Tensor) or type(value) in _PLAIN:
        return
    if type(value) is dict:
        for key, inner in value.items():
            yield from _not_plain(f"{where}[{key!r}]", inner)
            if not isinstance(key, str):
                yield f"key {key!r} of {where} is a {type(key).__name__}"
    elif type(value) is list:
        for index, inner in enumerate(value):
            yield from _not_plain(f"{where}[{index}]", inner)
    else:
        yield f"{where} is a {type(value).__name__}"


@law("a run as with the others")
def it_runs_with_other_numbers_of_clients_and_updates(tested: PolicyUnderTest) -> list[str]:
    """And of parameters."""
    return _of_a_run(tested.of_another_size())


@law("a run as with the others")
def it_runs_where_no_end_and_no_size_of_rounds_is_known(tested: PolicyUnderTest) -> list[str]:
    """`round_size` and `rounds` are None in loops that do not say."""
    return _of_a_run(replace(tested, round_size=None, rounds=None))


@law("runs with the defaults of each")
def it_runs_in_both_profiles_and_in_synchronous_rounds(tested: PolicyUnderTest) -> Iterator[str]:
    """With the defaults of each, which must name its settings."""
    runs = {
        f"profile {profile}, synchronous {synchronous}": replace(tested, profile=profile, synchronous=synchronous)
        for profile in PROFILES
        for synchronous in (False, True)
    }
    return _of_all(tested, runs)


@law("a run with each")
def it_runs_with_every_option(tested: PolicyUnderTest) -> Iterator[str]:
    """Each value of each setting that has a few to choose from; one that needs another setting may say so."""
    runs = {}
    for name, field in find(tested.name).Settings.model_fields.items():
        for value in _choices(field.annotation):
            chosen = replace(tested, settings={**tested.settings, name: value})
            with suppress(UserError):
                chosen.make()
                runs[f"{name}={value}"] = chosen
    return _of_all(tested, runs)


def _choices(annotation: Any) -> Iterator[Any]:
    """What a setting of this type may be, where that is a list."""
    if annotation is bool:
        yield from (False, True)
    elif get_origin(annotation) is Literal:
        yield from get_args(annotation)
    else:
        for one in get_args(annotation):
            yield from _choices(one)


def _of_all(tried: PolicyUnderTest, runs: Mapping[str, PolicyUnderTest]) -> Iterator[str]:
    """Problems of these runs; of those with equal settings once, and of those of `tried` not again."""
    seen = [tried.make().settings]
    for what, tested in runs.items():
        settings = tested.make().settings
        if settings not in seen:
            seen.append(settings)
            yield from (f"{what}: {problem}" for problem in _of_a_run(tested))


def _of_a_run(tested: PolicyUnderTest) -> list[str]:
    """Problems of a long sequence of random rounds: of its steps, and of whether it goes on from its state.

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
