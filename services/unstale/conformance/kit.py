"""Runs all conformance cases of policies: golden vectors, identities and laws."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import Any

import torch

from unstale.conformance import appendix_b, arithmetic, contract, golden, identities, state
from unstale.conformance.finding import Finding
from unstale.conformance.policy_under_test import PolicyUnderTest
from unstale.policies import describe, names
from unstale.policies.registry import find

LAWS: Mapping[str, Callable[[PolicyUnderTest], Finding]] = {
    name.replace("_", " "): function
    for module in (contract, state, arithmetic)
    for name, function in vars(module).items()
    if isinstance(function, FunctionType) and function.__module__ == module.__name__ and not name.startswith("_")
}
"""All laws: the public functions of these modules, by their names with spaces, which the report prints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of the report: one case of one policy. verdict: `pass`, `fail`, or `error` where the case raised."""

    policy: str
    case: str
    expected: str
    got: str
    verdict: str


def examine(policies: tuple[str, ...] = (), device: torch.device | str = "cpu") -> Iterator[Row]:
    """Yield a row for each case of these policies, or of all registered ones. Raises UserError for an unknown name.

    A case that raises gives a row with the verdict `error`; so does a policy that cannot be imported.
    """
    for name in policies:
        if name not in names():
            find(name)  # code, or unknown
    for name in policies or names():
        cases: list[tuple[str, Callable[[], Finding]]] = []
        yield _row(name, "it can be made", partial(_make, name, torch.device(device), cases))  # fills `cases`
        for case, check in cases:
            yield _row(name, case, check)


def _make(name: str, device: torch.device, cases: list[tuple[str, Callable[[], Finding]]]) -> Finding:
    """Make the policy once, and append its checks to `cases`: none if it cannot be made."""
    sequences = golden.written(name)
    settings = dict(find(name).example_settings)
    missing = _missing(name, settings)
    if missing and sequences:
        settings = dict(sequences[0].settings)
    elif missing:
        return Finding(
            expected="example_settings with all required settings",
            got=f"{missing[0]!r} is required: give the class example_settings",
            passed=False,
        )
    tested = PolicyUnderTest(name=name, device=device, settings=settings)
    tested.make()
    examples = [example for example in appendix_b.EXAMPLES if example.policy == name]
    cases += [(sequence.case, partial(golden.reproduces, sequence, device)) for sequence in (*examples, *sequences)]
    if name == appendix_b.COMPENSATED_POLICY:
        cases.append((appendix_b.COMPENSATED_CASE, partial(appendix_b.first_order, device)))
    cases += [(str(identity), partial(identities.hold, identity, device)) for identity in identities.of(name)]
    cases += [(case, partial(law, tested)) for case, law in LAWS.items()]
    return Finding(expected="a policy", got="a policy", passed=True)


def _missing(name: str, settings: Mapping[str, Any]) -> list[str]:
    """Required settings of a policy that are not given."""
    return [each.name for each in describe(name).settings if each.required and each.name not in settings]


def _row(policy: str, case: str, check: Callable[[], Finding]) -> Row:
    try:
        result = check()
    except Exception as error:  # noqa: BLE001 - any exception of a policy is a result
        message = f"{type(error).__name__}: {error}"
        return Row(policy=policy, case=case, expected="no exception", got=message, verdict="error")
    verdict = "pass" if result.passed else "fail"
    return Row(policy=policy, case=case, expected=result.expected, got=result.got, verdict=verdict)
