"""The whole examination of a policy: golden vectors, identities and laws."""

from collections.abc import Callable, Iterator
from functools import partial

import torch

from unstale.conformance import appendix_b, compensated, golden, identities
from unstale.conformance.finding import Finding, Row
from unstale.conformance.laws import LAWS
from unstale.conformance.policy_under_test import PolicyUnderTest
from unstale.errors import unknown_name
from unstale.policies import describe, names
from unstale.policies.registry import find

Case = tuple[str, Callable[[], Finding]]
"""What the report calls it, and how to find out."""


def examine(policies: tuple[str, ...] = (), device: torch.device | str = "cpu") -> Iterator[Row]:
    """A row for each case of these policies, or of all that are registered. Raises UserError for an unknown name.

    A case that raises is an error in the report; so is a policy that cannot be imported.
    """
    for name in policies:
        if name not in names():
            raise unknown_name("policy", name, names())
    for name in policies or names():
        yield from _examined(name, torch.device(device))


def _examined(name: str, device: torch.device) -> Iterator[Row]:
    cases: list[Case] = []
    row = _row(name, "it can be made", partial(_made, name, device, cases))
    yield row
    for case, find_out in cases:
        yield _row(name, case, find_out)


def _made(name: str, device: torch.device, cases: list[Case]) -> Finding:
    """Make the policy once; then its cases are known."""
    written = golden.written(name)
    settings = dict(find(name).example_settings)
    missing = [each.name for each in describe(name).settings if each.required and each.name not in settings]
    if missing and written:
        settings = dict(written[0].settings)
    elif missing:
        return Finding(
            expected="settings to make it with",
            got=f"{missing[0]!r} is required: give the class example_settings",
            passed=False,
        )
    tested = PolicyUnderTest(name=name, device=device, settings=settings)
    tested.make()
    cases += [(each.case, partial(golden.reproduces, each, device)) for each in (*appendix_b.of(name), *written)]
    if name == compensated.POLICY:
        cases.append((compensated.CASE, partial(compensated.first_order, device)))
    cases += [(str(each), partial(identities.hold, each, device)) for each in identities.of(name)]
    cases += [(sentence, partial(law, tested)) for sentence, law in LAWS.items()]
    return Finding(expected="a policy", got="a policy", passed=True)


def _row(policy: str, case: str, find_out: Callable[[], Finding]) -> Row:
    try:
        result = find_out()
    except Exception as error:  # noqa: BLE001 - whatever a policy raises is what was found
        message = f"{type(error).__name__}: {error}"
        return Row(policy=policy, case=case, expected="no exception", got=message, verdict="error")
    verdict = "pass" if result.passed else "fail"
    return Row(policy=policy, case=case, expected=result.expected, got=result.got, verdict=verdict)
