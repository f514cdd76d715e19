"""Laws on the state of a policy and on the kinds of runs that it supports. The report prints the name of each law."""

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
    """A policy that loads a copied state continues with equal bits; loading replaces its whole state."""
    return _problems_of_run(tested)


@law("equal bits after the state is overwritten")
def a_saved_state_is_not_shared(tested: PolicyUnderTest) -> list[str]:
    """Overwriting a saved state changes neither the policy that saved it nor the one that loaded it."""
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
    """A checkpoint holds tensors, numbers, texts, booleans, None, and lists and dictionaries of these."""
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


@law("a run without problems")
def it_runs_with_other_numbers_of_clients_and_updates(tested: PolicyUnderTest) -> list[str]:
    """The number of parameters differs as well."""
    return _problems_of_run(tested.of_another_size())


@law("a run without problems")
def it_runs_where_no_end_and_no_size_of_rounds_is_known(tested: PolicyUnderTest) -> list[str]:
    """`round_size` and `rounds` are None in loops that do not know them in advance."""
    return _problems_of_run(replace(tested, round_size=None, rounds=None))


@law("runs without problems")
def it_runs_in_both_profiles_and_in_synchronous_rounds(tested: PolicyUnderTest) -> Iterator[str]:
    """Each run has its own default settings, which must be valid."""
    runs = {
        f"profile {profile}, synchronous {synchronous}": replace(tested, profile=profile, synchronous=synchronous)
        for profile in PROFILES
        for synchronous in (False, True)
    }
    return _problems_of_runs(tested, runs)


@law("a run without problems for each")
def it_runs_with_every_option(tested: PolicyUnderTest) -> Iterator[str]:
    """All values of booleans and literals. A value that requires another setting may raise UserError."""
    runs = {}
    for name, field in find(tested.name).Settings.model_fields.items():
        for value in _choices(field.annotation):
            chosen = replace(tested, settings={**tested.settings, name: value})
            with suppress(UserError):
                chosen.make()
                runs[f"{name}={value}"] = chosen
    return _problems_of_runs(tested, runs)


def _choices(annotation: Any) -> Iterator[Any]:
    """The values of booleans and literals in the type of a setting."""
    if annotation is bool:
        yield from (False, True)
    elif get_origin(annotation) is Literal:
        yield from get_args(annotation)
    else:
        for member in get_args(annotation):
            yield from _choices(member)


def _problems_of_runs(checked: PolicyUnderTest, runs: Mapping[str, PolicyUnderTest]) -> Iterator[str]:
    """Problems of runs by name. Skips runs whose settings equal those of `checked` or of an earlier run."""
    seen = [checked.make().settings]
    for name, tested in runs.items():
        settings = tested.make().settings
        if settings not in seen:
            seen.append(settings)
            yield from (f"{name}: {problem}" for problem in _problems_of_run(tested))


def _problems_of_run(tested: PolicyUnderTest) -> list[str]:
    """Problems of the steps of a long sequence of random rounds, and of continuing it from saved states.

    A new policy loads the state after one round; a policy with another history loads the state after half of them.
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
