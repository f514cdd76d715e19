"""Laws of the class attributes of a policy."""

from typing import get_args

from unstale.conformance.finding import Finding, no_problems
from unstale.conformance.policy_under_test import PolicyUnderTest
from unstale.policies import describe
from unstale.policies.policy import Loop
from unstale.policies.registry import RESERVED, find
from unstale.training.registry import TRAININGS


def it_says_what_it_is(tested: PolicyUnderTest) -> Finding:
    """The policy has a summary and a source; each setting has a description and a source of its default."""
    about = describe(tested.name)
    missing = [f"no {what} of the policy" for what in ("summary", "source") if not getattr(about, what)]
    for setting in about.settings:
        missing += [
            f"no {what} of {setting.name!r}" for what in ("description", "source") if not getattr(setting, what)
        ]
    return no_problems("summary, source, described settings", missing)


def what_it_names_is_known(tested: PolicyUnderTest) -> Finding:
    """Its training, loops and settings exist, and no setting has a reserved name."""
    policy = find(tested.name)
    fields = policy.Settings.model_fields
    problems = [f"unknown training {policy.training!r}"] if policy.training not in (None, *TRAININGS) else []
    problems += [f"unknown loop {loop!r}" for loop in policy.loops if loop not in get_args(Loop)]
    problems += [f"no setting may be called {name!r}" for name in fields if name in RESERVED]
    for defaults in (policy.synchronous_defaults, policy.reference_defaults, policy.example_settings):
        problems += [f"a default for {name!r}, which is no setting" for name in defaults if name not in fields]
    return no_problems("names that are known", problems)
