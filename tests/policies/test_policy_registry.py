"""Policies by name: the list, the mistakes of a user, and plug-ins."""

import re
from importlib.metadata import EntryPoint, EntryPoints

import pytest
import torch
from pydantic import Field

from unstale import plugins
from unstale.errors import UserError
from unstale.policies import Policy, PolicySettings, Step, UpdateBatch, create, describe, names, registry
from unstale.policies.fedavg import FedAvg

NAMES = (
    "coordinate-median",
    "direct",
    "dynsgd",
    "fedar",
    "fedasync",
    "fedavg",
    "fedavg-is",
    "fedavg-s",
    "fedbuff",
    "fedhist",
    "fedprox",
    "fedvarp",
    "geometric-median",
    "gsgm",
    "krum",
    "mifa",
    "moon",
    "multi-krum",
    "refl",
    "sasgd",
    "scaffold",
    "trimmed-mean",
    "twafl",
    "weighted",
    "wkafl",
)


class NoStepSettings(PolicySettings):
    times: int = Field(description="Number of steps without effect.", ge=1)


class NoStep(Policy[NoStepSettings]):
    """Never moves the model."""

    Settings = NoStepSettings
    source = "this test"

    def step(self, batch: UpdateBatch) -> Step:
        return Step(direction_d=torch.zeros(self.dimension), rate_factor=1.0, weights_K=torch.zeros(len(batch)))


def plug_in(monkeypatch: pytest.MonkeyPatch, *points: EntryPoint) -> None:
    """Install exactly these entry points."""
    monkeypatch.setattr(plugins, "entry_points", lambda **wanted: EntryPoints(points).select(**wanted))


def entry_point(value: str, name: str = "nothing") -> EntryPoint:
    return EntryPoint(name=name, value=value, group="unstale.policies")


def message(name: str, **arguments: object) -> str:
    with pytest.raises(UserError) as caught:
        create(name, **{"dimension": 4, "clients": 5, **arguments})
    return str(caught.value)


def test_the_names_are_sorted_and_complete() -> None:
    assert names() == NAMES


@pytest.mark.parametrize("name", names())
def test_every_policy_describes_its_purpose_source_and_settings(name: str) -> None:
    description = describe(name)
    assert description.summary.endswith(".")
    assert re.search(rf"docs/methods/policies[a-z-]*\.md#{name}\b", description.source)
    assert description.loops
    assert description.memory
    for setting in description.settings:
        assert setting.description.endswith("."), setting.name
        assert setting.expected, setting.name
        assert setting.source, setting.name


@pytest.mark.parametrize("name", names())
def test_profiles_and_loops_set_existing_settings(name: str) -> None:
    policy_class = registry.find(name)
    for defaults in (policy_class.synchronous_defaults, policy_class.reference_defaults):
        assert set(defaults) <= set(policy_class.Settings.model_fields)


def test_a_setting_is_described_with_its_range_and_default() -> None:
    settings = {setting.name: setting for setting in describe("fedasync").settings}
    assert settings["alpha"].expected == "a number > 0 and <= 1"
    assert settings["alpha"].default == 0.6
    assert settings["b"].expected == "a whole number >= 0"
    assert settings["staleness"].expected == "one of polynomial, constant, hinge"
    assert describe("dynsgd").settings[0].expected == "true or false"


def test_only_fedasync_always_needs_base_models() -> None:
    assert [name for name in names() if describe(name).needs_base_models] == ["fedasync"]


def test_a_setting_may_decide_whether_base_models_are_needed() -> None:
    assert not create("direct", dimension=4, clients=5).needs_base_models
    assert create("direct", dimension=4, clients=5, stale_form="model").needs_base_models


def test_policies_declare_their_client_requirements() -> None:
    needed = {name: describe(name).training for name in names() if describe(name).training}
    assert needed == {"fedprox": "fedprox", "moon": "moon", "scaffold": "scaffold"}
    assert [name for name in names() if registry.find(name).sends_extra] == ["scaffold"]
    assert [name for name in names() if registry.find(name).once_a_cycle] == ["gsgm"]


def test_a_policy_stores_its_settings_and_context() -> None:
    policy = create("fedavg", dimension=4, clients=5, device="cpu", weighting="samples")
    assert (policy.dimension, policy.clients, policy.device) == (4, 5, torch.device("cpu"))
    assert policy.settings.weighting == "samples"


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("fedbuf", {}, "unknown policy 'fedbuf'; did you mean 'fedbuff'?"),
        ("zzz", {}, f"unknown policy 'zzz'; expected one of {', '.join(NAMES)}"),
        ("dynsgd", {"normalize": True}, "unknown setting 'normalize' of policy 'dynsgd'; did you mean 'normalise'?"),
        ("fedasync", {"alpha": 1.5}, "setting 'alpha' of policy 'fedasync' is 1.5, expected a number > 0 and <= 1"),
        (
            "fedasync",
            {"alpha": float("nan")},
            "setting 'alpha' of policy 'fedasync' is nan, expected a number > 0 and <= 1",
        ),
        ("fedasync", {"b": -1}, "setting 'b' of policy 'fedasync' is -1, expected a whole number >= 0"),
        (
            "fedavg",
            {"weighting": "sample"},
            "setting 'weighting' of policy 'fedavg' is 'sample', expected one of uniform, samples",
        ),
        (
            "dynsgd",
            {"normalise": "perhaps"},
            "setting 'normalise' of policy 'dynsgd' is 'perhaps', expected true or false",
        ),
        (
            "fedavg-is",
            {},
            "setting 'probabilities' of policy 'fedavg-is' is missing, expected a number or a list, each a number",
        ),
        (
            "fedavg-is",
            {"probabilities": [0.5, 0.5]},
            "setting 'probabilities' of policy 'fedavg-is' has 2 numbers, expected one for each of the 5 clients",
        ),
        (
            "fedavg-is",
            {"probabilities": [0.5, 1.0, 0.0, 0.5, 0.5]},
            "setting 'probabilities' of policy 'fedavg-is' is 0.0 for client 2, expected a number from 1e-06 to 1",
        ),
        (
            "fedavg-is",
            {"probabilities": 1.5},
            "setting 'probabilities' of policy 'fedavg-is' is 1.5, expected a number from 1e-06 to 1",
        ),
        ("fedavg-s", {"size": 0}, "setting 'size' of policy 'fedavg-s' is 0, expected a whole number >= 1"),
        (
            "fedavg-s",
            {"size": 6},
            "setting 'size' of policy 'fedavg-s' is 6, expected at most the run's number of clients, 5",
        ),
        ("gsgm", {"alpha": -1}, "setting 'alpha' of policy 'gsgm' is -1, expected a number from 0 to 1,000,000"),
        ("refl", {"beta": 2}, "setting 'beta' of policy 'refl' is 2, expected a number from 0 to 1"),
        ("scaffold", {"alpha": 1}, "unknown setting 'alpha' of policy 'scaffold', which has no settings"),
        ("fedavg", {"dimension": 0}, "dimension is 0, expected a whole number >= 1"),
        ("fedavg", {"clients": 2.5}, "clients is 2.5, expected a whole number >= 1"),
        ("fedavg", {"device": "gpu"}, "device is 'gpu', expected cpu, cuda, cuda:<number> or mps"),
    ],
)
def test_a_users_mistake_gets_a_one_sentence_error(name: str, arguments: dict[str, object], expected: str) -> None:
    assert message(name, **arguments) == expected


def test_a_plug_in_is_listed_and_built_like_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in(monkeypatch, entry_point("plug:NoStep"))
    monkeypatch.setattr(EntryPoint, "load", lambda self: NoStep)
    assert "nothing" in names()
    assert describe("nothing").summary == "Never moves the model."
    assert describe("nothing").settings[0].required
    assert isinstance(create("nothing", dimension=4, clients=5, times=1), NoStep)
    assert message("nothing") == "setting 'times' of policy 'nothing' is missing, expected a whole number >= 1"


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        (
            [entry_point("no_module:Policy")],
            "policy 'nothing' cannot be imported from no_module:Policy: No module named 'no_module'",
        ),
        (
            [entry_point("math:pi")],
            "policy 'nothing' is math:pi, expected a class derived from unstale.policies.Policy",
        ),
        (
            [entry_point("math:pi"), entry_point("math:e")],
            "policy 'nothing' is registered by several packages; uninstall all but one of them",
        ),
    ],
)
def test_a_broken_plug_in_gets_a_one_sentence_error(
    monkeypatch: pytest.MonkeyPatch, points: list[EntryPoint], expected: str
) -> None:
    plug_in(monkeypatch, *points)
    assert message("nothing") == expected


def test_a_plug_in_cannot_replace_a_built_in_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in(monkeypatch, entry_point("math:pi", name="fedavg"))
    assert names().count("fedavg") == 1
    assert describe("fedavg").source.endswith("docs/methods/policies.md#fedavg")


@pytest.mark.parametrize(("old", "new"), [("streams", "column_wise"), ("scales", "is_homogeneous")])
def test_a_plug_in_with_an_attribute_of_an_older_version_is_refused(old: str, new: str) -> None:
    with pytest.raises(UserError, match=f"policy class Mine sets {old}, which is now called {new}; rename it"):
        type("Mine", (FedAvg,), {old: True})
