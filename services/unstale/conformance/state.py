"""Laws of what a policy remembers, and of the runs that it can be part of."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal, get_args, get_origin

from torch import Tensor

from unstale.conformance.finding import Finding, no_problems
from unstale.conformance.policy_under_test import PolicyUnderTest, random_rounds, run
from unstale.conformance.problems import of_a_run, other
from unstale.errors import UserError
from unstale.policies.registry import PROFILES, find

_PLAIN = (bool, int, float, str, type(None))


def a_policy_continues_from_its_state(tested: PolicyUnderTest) -> Finding:
    """Saved in mid-sequence and loaded; it replaces all that was there, and what was saved is a copy."""
    return no_problems("equal bits after saving and loading", of_a_run(tested))


def a_saved_state_is_not_shared(tested: PolicyUnderTest) -> Finding:
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
    problems = other(right, run(saving, batches[half:])) + other(right, run(loading, batches[half:]))
    return no_problems("equal bits after the state is overwritten", problems)


def _overwrite(state: Any) -> None:
    if isinstance(state, Tensor):
        state.fill_(1)
    if isinstance(state, dict | list | tuple):
        for value in state.values() if isinstance(state, dict) else state:
            _overwrite(value)
    if isinstance(state, dict | list):
        state.clear()


def a_state_holds_plain_values(tested: PolicyUnderTest) -> Finding:
    """Tensors, numbers, texts, truth values, None, and lists and dictionaries of them: what a checkpoint holds."""
    policy = tested.make()
    run(policy, random_rounds(policy, 15))
    problems = [f"{where} is a {what}" for where, what in _not_plain("state", policy.state_dict())]
    return no_problems("tensors, numbers, texts, lists, dictionaries", problems)


def _not_plain(where: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Tensor) or type(value) in _PLAIN:
        return
    if type(value) is dict:
        for key, inner in value.items():
            yield from _not_plain(f"{where}[{key!r}]", inner)
            if not isinstance(key, str):
                yield f"key {key!r} of {where}", type(key).__name__
    elif type(value) is list:
        for index, inner in enumerate(value):
            yield from _not_plain(f"{where}[{index}]", inner)
    else:
        yield where, type(value).__name__


def it_runs_with_other_numbers_of_clients_and_updates(tested: PolicyUnderTest) -> Finding:
    """And of parameters."""
    return no_problems("a run as with the others", of_a_run(tested.of_another_size()))


def it_runs_where_no_end_and_no_size_of_rounds_is_known(tested: PolicyUnderTest) -> Finding:
    """`round_size` and `rounds` are None in loops that do not say."""
    return no_problems("a run as with the others", of_a_run(replace(tested, round_size=None, rounds=None)))


def it_runs_in_both_profiles_and_in_synchronous_rounds(tested: PolicyUnderTest) -> Finding:
    """With the defaults of each, which must name its settings."""
    runs = {
        f"profile {profile}, synchronous {synchronous}": replace(tested, profile=profile, synchronous=synchronous)
        for profile in PROFILES
        for synchronous in (False, True)
    }
    return no_problems("runs with the defaults of each", _of_all(tested, runs))


def it_runs_with_every_option(tested: PolicyUnderTest) -> Finding:
    """Each value of each setting that has a few to choose from; one that needs another setting may say so."""
    runs = {}
    for name, field in find(tested.name).Settings.model_fields.items():
        for value in _choices(field.annotation):
            chosen = replace(tested, settings={**tested.settings, name: value})
            with suppress(UserError):
                chosen.make()
                runs[f"{name}={value}"] = chosen
    return no_problems("a run with each", _of_all(tested, runs))


def _of_all(tried: PolicyUnderTest, runs: Mapping[str, PolicyUnderTest]) -> list[str]:
    """Problems of these runs; of those with equal settings once, and of those of `tried` not again."""
    seen, problems = [tried.make().settings], []
    for what, tested in runs.items():
        settings = tested.make().settings
        if settings not in seen:
            seen.append(settings)
            problems += [f"{what}: {problem}" for problem in of_a_run(tested)]
    return problems


def _choices(annotation: Any) -> Iterator[Any]:
    """What a setting of this type may be, where that is a list."""
    if annotation is bool:
        yield from (False, True)
    elif get_origin(annotation) is Literal:
        yield from get_args(annotation)
    else:
        for one in get_args(annotation):
            yield from _choices(one)
