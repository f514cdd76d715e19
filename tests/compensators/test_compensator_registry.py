"""Compensators by name: descriptions, settings and plug-ins."""

import re
from importlib.metadata import EntryPoint, EntryPoints

import pytest
from pydantic import Field

from support.compensation import context, made
from unstale import plugins
from unstale.compensators import Compensator, Outcome, create, describe, names
from unstale.compensators.inversion.settings import PRESETS, InversionSettings
from unstale.errors import UserError
from unstale.part_settings import PartSettings

NAMES = ("none", "auto", "first-order", "gradient-inversion", "oracle")


class KeepSettings(PartSettings):
    times: int = Field(ge=1, description="How often.", json_schema_extra={"source": "this test"})


class Keep(Compensator[KeepSettings]):
    """Leaves every update as it is.

    And says so at length.
    """

    Settings = KeepSettings
    source = "this test"

    def take(self, stale, made) -> Outcome:
        return Outcome(vectors={}, counts_as_fresh=(), updates=[])


def plug_in(monkeypatch: pytest.MonkeyPatch, *points: EntryPoint) -> None:
    """Let exactly these entry points be installed."""
    monkeypatch.setattr(plugins, "entry_points", lambda **wanted: EntryPoints(points).select(**wanted))


def entry_point(value: str, name: str = "keep") -> EntryPoint:
    return EntryPoint(name=name, value=value, group="unstale.compensators")


def message(name: str, **settings: object) -> str:
    with pytest.raises(UserError) as caught:
        create(name, settings, context())
    return str(caught.value)


def test_the_names_are_sorted_after_that_of_none_and_complete() -> None:
    assert names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_compensator_has_a_description(name: str) -> None:
    description = describe(name)
    assert description.name == name
    assert description.summary.endswith(".")
    assert "\n" not in description.summary
    assert re.search(r"docs/methods/compensators\.md#[a-z-]+$", description.source)
    assert description.memory
    for setting in description.settings:
        assert setting.description.endswith("."), setting.name
        assert setting.expected, setting.name
        assert setting.source, setting.name


def test_who_reconstructs_data_and_who_is_only_simulated() -> None:
    assert [name for name in NAMES if describe(name).inverts] == ["auto", "gradient-inversion"]
    assert [name for name in NAMES if describe(name).only_simulated] == ["oracle"]


def test_none_is_no_compensator_and_has_no_settings() -> None:
    assert create("none", {}, context()) is None
    assert describe("none").settings == ()
    assert message("none", lambda_u=1) == (
        "compensator.settings.lambda_u is given with compensator.name 'none', which has no settings; leave it out, or "
        "name a compensator"
    )


def test_a_compensator_is_made_with_its_settings() -> None:
    assert made("first-order", lambda_u=0.5).settings.lambda_u == 0.5
    auto = made("auto", margin=0.9, strength="adaptive")
    assert (auto.settings.margin, auto.settings.strength) == (0.9, "adaptive")
    assert auto.first_order.settings.strength == "adaptive"


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    error = message("gradient-inverson")
    assert error.startswith("unknown compensator 'gradient-inverson'")
    assert "gradient-inversion" in error


# Presets.


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_overrides_defaults(preset: str) -> None:
    found = InversionSettings(preset=preset).model_dump()
    expected = {**InversionSettings().model_dump(), **PRESETS[preset], "preset": preset}
    assert found == expected


def test_given_settings_override_the_preset() -> None:
    found = InversionSettings(preset="paper-sign-adam", iterations=500, residual=0.25)
    assert (found.iterations, found.residual, found.learning_rate) == (500, 0.25, 1.0)


def test_the_preset_of_the_paper_has_its_values_and_the_optimiser_of_the_released_code() -> None:
    # docs/methods/compensators.md#gradient-inversion.
    found = InversionSettings(preset="paper-sign-adam")
    assert found.disparity == "l1"
    assert found.images_share == 0.5
    assert found.images_max is None
    assert found.iterations == 15_000
    assert (found.label_loss, found.labels_start) == ("soft", "normal")
    assert (found.optimiser, found.learning_rate, found.schedule) == ("sign-adam", 1.0, "steps")
    assert (found.warm_start, found.warm_share, found.residual) == (True, 0.57, 0.0)
    assert (found.margin, found.smooth_rounds) == (1.0, 20)


def test_the_preset_reference_has_the_values_of_the_released_code() -> None:
    found = InversionSettings(preset="reference")
    assert (found.images_max, found.iterations, found.label_loss) == (256, 40_000, "bce-raw")
    assert not found.warm_start


def test_the_earlier_name_of_a_preset_is_read_as_the_present_one() -> None:
    earlier, present = ({"preset": name, "iterations": 500} for name in ("paper", "paper-sign-adam"))
    assert InversionSettings(**earlier) == InversionSettings(**present)
    assert made("gradient-inversion", **earlier).settings == made("auto", **present).settings
    assert "paper" not in describe("auto").settings[0].type.removeprefix("one of ").split(", ")


# Plug-ins.


def test_a_plug_in_is_listed_and_made_like_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in(monkeypatch, entry_point("plug:Keep"))
    monkeypatch.setattr(EntryPoint, "load", lambda self: Keep)
    assert "keep" in names()
    assert describe("keep").summary == "Leaves every update as it is."
    assert describe("keep").settings[0].required
    assert isinstance(create("keep", {"times": 1}, context()), Keep)
    assert message("keep") == "setting 'times' of compensator 'keep' is missing, expected a whole number >= 1"


def test_a_plug_in_needs_to_do_no_more_than_take(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = Keep(KeepSettings(times=1), context())
    assert (subject.make(None), subject.begins_early, subject.work(), subject.state_dict()) == ({}, False, False, {})
    subject.load_state_dict({})
    with pytest.raises(ValueError, match=r"Keep keeps no state, got \['squares'\]"):
        subject.load_state_dict({"squares": 1})


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        (
            [entry_point("no_module:Keep")],
            "compensator 'keep' cannot be imported from no_module:Keep: No module named 'no_module'",
        ),
        (
            [entry_point("math:pi")],
            "compensator 'keep' is math:pi, expected a class derived from unstale.compensators.Compensator",
        ),
        (
            [entry_point("math:pi"), entry_point("math:e")],
            "compensator 'keep' is registered by several packages; uninstall all but one of them",
        ),
    ],
)
def test_a_broken_plug_in_has_an_error_of_one_sentence(
    monkeypatch: pytest.MonkeyPatch, points: list[EntryPoint], expected: str
) -> None:
    plug_in(monkeypatch, *points)
    assert message("keep", times=1) == expected


@pytest.mark.parametrize("name", ["none", "auto"])
def test_a_plug_in_cannot_replace_a_built_in_name(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    plug_in(monkeypatch, entry_point("math:pi", name=name))
    assert names().count(name) == 1
    assert describe(name).source != ""
