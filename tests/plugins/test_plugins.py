"""Parts of a user's own: by entry point, as `package.module:name`, as an object, and with a decorator."""

import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import unstale
from support import plugged
from support.compensation import context
from support.plugged import EVERYTHING, MyTrigger
from unstale import compensators, plugins, policies
from unstale.config import Settings
from unstale.config.scenario import conditions
from unstale.coordinator import selectors, triggers
from unstale.errors import UserError
from unstale.settings.learning import (
    ObjectiveSettings,
    PartitionSettings,
    SelectorSettings,
    TrainingSettings,
    TriggerSettings,
)
from unstale.toxics import registry as toxics
from unstale.toxics.latency import Latency
from unstale.training import datasets, models, objectives, partition
from unstale.training import registry as trainings

FACTORIES = ("objective", "partition", "selector", "training", "trigger")
"""Kinds of which an object, and a function that makes one, are parts, too."""


@pytest.fixture(autouse=True)
def _of_this_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "_objects", {})


def installed(monkeypatch: pytest.MonkeyPatch, *points: EntryPoint) -> None:
    """Let exactly these entry points be installed."""
    monkeypatch.setattr(plugins, "entry_points", lambda **wanted: EntryPoints(points).select(**wanted))


def made(kind: str, name: str) -> object:
    """The part of a name, made as a run makes it."""
    match kind:
        case "compensator":
            return compensators.create(name, {}, context())
        case "objective":
            return objectives.create(ObjectiveSettings(name=name))
        case "partition":
            return partition.create(PartitionSettings(name=name))
        case "policy":
            return policies.create(name, dimension=1, clients=1)
        case "selector":
            return selectors.create(SelectorSettings(name=name), clients=3, availability=None)
        case "toxic":
            return toxics.create({"type": name}, "here")
        case "training":
            return trainings.create(TrainingSettings(name=name))
        case _:
            return triggers.create(TriggerSettings(name=name))


def refused(kind: str, name: str) -> str:
    with pytest.raises(UserError) as caught:
        made(kind, name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def local_copy(kind: str) -> type:
    """A class that no module has."""
    return type("Mine", (EVERYTHING[kind],), {"__doc__": "Mine.", "__module__": "__main__"})


# --- where a part is from ---


@pytest.mark.parametrize("kind", EVERYTHING)
def test_every_kind_has_entry_points(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    part_class = EVERYTHING[kind]
    group = f"unstale.{kind}s" if kind != "policy" else "unstale.policies"
    installed(monkeypatch, EntryPoint("mine", f"support.plugged:{part_class.__name__}", group))
    assert type(made(kind, "mine")) is part_class
    assert refused(kind, "mime").endswith(f"unknown {kind} 'mime'; did you mean 'mine'?")


@pytest.mark.parametrize("kind", EVERYTHING)
def test_every_kind_has_names_of_code(kind: str) -> None:
    part_class = EVERYTHING[kind]
    assert type(made(kind, f"support.plugged:{part_class.__name__}")) is part_class


@pytest.mark.parametrize("kind", EVERYTHING)
def test_a_class_of_a_module_has_its_name(kind: str) -> None:
    part_class = EVERYTHING[kind]
    assert plugins.name_of(kind, part_class) == f"support.plugged:{part_class.__name__}"


@pytest.mark.parametrize("kind", EVERYTHING)
def test_a_class_of_no_module_has_a_name_of_this_process(kind: str) -> None:
    first, second = local_copy(kind), local_copy(kind)
    assert plugins.name_of(kind, first) == "<Mine>"
    assert plugins.name_of(kind, second) == "<Mine 2>"
    assert plugins.name_of(kind, first) == "<Mine>"
    assert type(made(kind, "<Mine>")) is first
    assert type(made(kind, "<Mine 2>")) is second


@pytest.mark.parametrize("kind", EVERYTHING)
def test_every_kind_has_a_decorator(kind: str) -> None:
    decorator = getattr(unstale, "local_training" if kind == "training" else kind)
    part_class = local_copy(kind)
    assert decorator("mine")(part_class) is part_class
    assert type(made(kind, "mine")) is part_class
    assert plugins.name_of(kind, part_class) == "mine"
    assert refused(kind, "mime").endswith(f"unknown {kind} 'mime'; did you mean 'mine'?")


def test_names_list_decorated_parts_and_entry_points_but_no_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, EntryPoint("installed", "nowhere:Installed", "unstale.policies"))
    unstale.policy("decorated")(local_copy("policy"))
    unstale.trigger("other")(local_copy("trigger"))
    plugins.name_of("policy", local_copy("policy"))
    assert set(policies.names()) - set(policies.registry.CLASSES) == {"decorated", "installed"}


def test_a_decorator_replaces_the_part_of_an_earlier_one() -> None:
    unstale.trigger("mine")(local_copy("trigger"))
    later = unstale.trigger("mine")(local_copy("trigger"))
    assert type(made("trigger", "mine")) is later


def test_the_decorators_need_no_torch() -> None:
    names = "compensator, data, local_training, model, objective, partition, policy, scenario, selector, toxic, trigger"
    program = f"import sys; from unstale import {names}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("name", ["", "a:b", "<a>", "x" * 129, MyTrigger])
def test_a_decorator_needs_a_plain_name(name: Any) -> None:
    with pytest.raises(UserError, match=r"^the name of a trigger is .*, expected 1 to 128 characters of A-Za-z0-9_.- "):
        unstale.trigger(name)


@pytest.mark.parametrize("kind", EVERYTHING)
def test_no_kind_replaces_a_built_in_part(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    built_in = {
        "compensator": "first-order", "objective": "regression", "partition": "iid", "policy": "fedavg",
        "selector": "all", "toxic": "reorder", "training": "sgd", "trigger": "sync",
    }[kind]  # fmt: skip
    installed(monkeypatch, EntryPoint(built_in, "math:pi", f"unstale.{kind}s"))
    if kind != "toxic":  # which has settings without a default
        assert not isinstance(made(kind, built_in), EVERYTHING[kind])
    plugins.registering(kind)(built_in)(local_copy(kind))
    assert refused(kind, built_in).endswith(f"{kind} {built_in!r} is built in; register your own by another name")


# --- objects and functions ---


def test_an_object_of_a_module_has_its_name_and_is_the_part() -> None:
    assert plugins.name_of("trigger", plugged.pairs) == "support.plugged:pairs"
    assert made("trigger", "support.plugged:pairs") is plugged.pairs


@pytest.mark.parametrize("kind", FACTORIES)
def test_an_object_and_a_function_are_parts(kind: str) -> None:
    settings = {"trigger": {"k": 2}, "training": {"batch_size": 7, "steps": 1, "epochs": None, "weight_decay": 0.0}}
    more = {"momentum": 0.5} if kind == "training" else {}
    own = EVERYTHING[kind](**settings.get(kind, {}), **more)
    name = plugins.name_of(kind, own)
    assert name == f"<{type(own).__name__}>"
    assert made(kind, name) is own
    assert made(kind, plugins.name_of(kind, lambda: own)) is own


def test_a_function_takes_keys_of_the_section() -> None:
    made_of_three = triggers.create(TriggerSettings(name="support.plugged:as_many", k=3))
    assert made_of_three == MyTrigger(k=3)


def test_a_name_is_no_object() -> None:
    assert plugins.name_of("policy", "fedavg") == "fedavg"
    assert plugins.name_of("trigger", "x:y") == "x:y"


def test_a_number_is_named_after_no_attribute_of_another_module() -> None:
    assert plugins.name_of("trigger", 3) == "<trigger>"
    assert "trigger '<trigger>' is of type int, expected a class derived from" in refused("trigger", "<trigger>")


def test_a_name_is_at_most_as_long_as_the_wire_permits(monkeypatch: pytest.MonkeyPatch) -> None:
    long_name = type("x" * 120, (MyTrigger,), {"__module__": "support.plugged"})
    monkeypatch.setattr(plugged, "x" * 120, long_name, raising=False)
    assert plugins.name_of("trigger", long_name) == f"<{'x' * 64}>"


def test_the_name_of_an_object_of_another_process_is_refused() -> None:
    assert refused("trigger", "<Mine>") == (
        "trigger '<Mine>' is an object of the process that started the run, which this process does not have; define "
        "it in a module, and name it package.module:name"
    )


def test_a_name_from_elsewhere_imports_nothing() -> None:
    for registry in (partition.REGISTRY, trainings.REGISTRY, objectives.REGISTRY):
        registry.check_allowed("nowhere:mine", ["nowhere:mine"])
        registry.check_allowed("nowhere:mine", None)
        for name in ("nowhere:mine", "mine", "<Mine>"):
            with pytest.raises(UserError, match=f"^{registry.kind} '{name}' is code, which only this machine's own"):
                registry.check_allowed(name, ["other"])


def test_an_error_in_a_module_names_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wrong_module.py").write_text("one = 1\nother = one / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert refused("trigger", "wrong_module:Mine") == (
        "trigger 'wrong_module:Mine' cannot be imported (ZeroDivisionError: division by zero); "
        f"{tmp_path / 'wrong_module.py'}, line 2; mend the module"
    )


def test_a_name_that_is_almost_right_is_suggested() -> None:
    assert refused("trigger", "support.plugged:MyTriger").endswith("has no 'MyTriger'; did you mean 'MyTrigger'?")
    assert refused("trigger", "my/parts.py:Mine").endswith("expected package.module:name, such as my.parts:Mine")


# --- what is no part ---


BAD: dict[tuple[str, str], str] = {
    ("trigger", "NotAPart"): "is the class NotAPart, expected a class derived from unstale.coordinator.triggers.Trigg"
    "er, an object of such a class, or a function that returns one",
    ("trigger", "NUMBER"): "is of type int, expected a class derived from unstale.coordinator.triggers.Trigger",
    ("trigger", "MyPolicy"): "is the class MyPolicy, expected a class derived from unstale.coordinator.triggers.",
    ("trigger", "NoTake"): "is the class NoTake, which does not define take; define it in the class",
    ("trigger", "NoDataclass"): "declares 'k', but does not take it; decorate the class with @dataclass(",
    ("trigger", "NeedsShare"): "needs 'share', and none was given; add trigger.settings.share, or give it a default",
    ("trigger", "Fails"): "cannot be made (ValueError: no luck)",
    ("partition", "invalid"): "cannot be made (count is 0: Input should be greater than or equal to 1)",
    ("trigger", "nothing"): "is made as a NoneType, expected unstale.coordinator.triggers.Trigger",
    ("trigger", "missing"): ": support.plugged has no 'missing', expected package.module:name",
    ("training", "NoKind"): "is the class NoKind, which does not define name, kind; define it in the class",
    ("policy", "pairs"): "is of type MyTrigger, expected a class derived from unstale.policies.Policy",
    ("policy", "NotAPart"): "is the class NotAPart, expected a class derived from unstale.policies.Policy",
    ("compensator", "nothing"): "is of type function, expected a class derived from unstale.compensators.Compensator",
    ("objective", "nothing"): "is made as a NoneType, expected unstale.training.objectives.Objective",
    ("partition", "NotAPart"): "is the class NotAPart, expected a class derived from unstale.training.partition.Partit",
    ("selector", "MyTrigger"): "is the class MyTrigger, expected a class derived from unstale.coordinator.selectors.Se",
}  # fmt: skip


@pytest.mark.parametrize(("kind", "name"), BAD)
def test_what_is_no_part_is_refused_in_one_sentence(kind: str, name: str) -> None:
    message = refused(kind, f"support.plugged:{name}")
    assert message.startswith(f"{kind} 'support.plugged:{name}'")
    assert BAD[kind, name] in message


@pytest.mark.parametrize("kind", EVERYTHING)
@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("nowhere:Mine", "cannot be imported from nowhere:Mine: No module named 'nowhere'"),
        (
            "support.plugged:missing",
            "cannot be imported from support.plugged:missing: module 'support.plugged' has no ",
        ),
        ("broken_part:Mine", "cannot be imported from broken_part:Mine: ZeroDivisionError: division by zero"),
        ("support.plugged:NotAPart", "is support.plugged:NotAPart, expected a class derived from unstale."),
    ],
)
def test_a_broken_entry_point_is_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, kind: str, value: str, message: str
) -> None:
    (tmp_path / "broken_part.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    installed(monkeypatch, EntryPoint("mine", value, "unstale.policies" if kind == "policy" else f"unstale.{kind}s"))
    assert f"{kind} 'mine' {message}" in refused(kind, "mine")


def test_two_packages_with_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    group = "unstale.triggers"
    installed(monkeypatch, EntryPoint("mine", "math:pi", group), EntryPoint("mine", "math:e", group))
    assert refused("trigger", "mine") == (
        "trigger 'mine' is registered by several packages; uninstall all but one of them"
    )


def test_code_is_found_in_the_current_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "trigger_of_mine.py").write_text("from support.plugged import MyTrigger as Mine")
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.chdir(tmp_path)
    assert isinstance(made("trigger", "trigger_of_mine:Mine"), MyTrigger)


# --- models, data sets and scenarios ---


def test_a_model_is_a_function_a_class_or_an_object() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    for factory in (module, lambda: module, lambda input_shape, classes: module):
        name = plugins.name_of("model", factory)
        built = models.build(name, (1, 2, 2), 3, 0)
        assert torch.equal(built[1].weight, module[1].weight)
    built = models.build(plugins.name_of("model", module), (1, 2, 2), 3, 0)
    assert built is not module, "a run does not train the object of the user"


def test_a_data_set_is_an_object_or_a_function() -> None:
    digits = datasets.load("digits")
    for thing in (digits, lambda: digits):
        assert datasets.load(plugins.name_of("data", thing)) is digits
    pair = (torch.utils.data.TensorDataset(torch.zeros(3, 2), torch.zeros(3)),) * 2
    read = datasets.read(datasets.Source(name=plugins.name_of("data", pair)))
    assert (plugins.name_of("data", pair), read.has("test")) == ("<data>", True)


def test_a_scenario_is_a_mapping_as_in_a_file() -> None:
    local = {**plugged.SLOW, "groups": [{**plugged.SLOW["groups"][0], "toxics": [{"type": "latency", "delay": 1e-5}]}]}
    names = [plugins.name_of("scenario", plugged.SLOW), plugins.name_of("scenario", local)]
    assert names == ["support.plugged:SLOW", "<scenario>"]
    for name in names:
        devices = conditions(Settings(clients=3, scenario={"name": name})).devices
        # 9 seconds a step for client 1, nothing for the others
        assert [devices.duration_s(client_id, 0, 2) for client_id in range(3)] == [0.0, 18.0, 0.0]
    (applied,) = conditions(Settings(clients=3, scenario={"name": names[1]})).toxics
    assert applied.toxic.delay.draw(None, 0.0) == 1e-5


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        (3.5, "scenario '<scenario>' is of type float, expected a mapping with description and groups"),
        ({"groups": [object()]}, "scenario '<scenario>' holds what YAML does not: "),
        ({"groups": []}, "scenario <scenario>: groups is [], expected a list of groups"),
    ],
)
def test_what_is_no_scenario_is_refused(thing: object, message: str) -> None:
    with pytest.raises(UserError) as caught:
        conditions(Settings(scenario={"name": plugins.name_of("scenario", thing)}))
    assert str(caught.value).startswith(message)


def test_a_scenario_is_a_function_that_returns_it_and_contains_toxics_as_objects() -> None:
    class Local(plugged.MyToxic):
        pass

    delayed = Latency(delay=0.25, direction="up")
    entries = [{"type": plugged.MyToxic, "toxicity": 0.5}, {"type": Local}, delayed]
    name = plugins.name_of("scenario", lambda: {"groups": [{"name": "all", "toxics": entries}]})
    mine, local, latency = (each.toxic for each in conditions(Settings(scenario={"name": name})).toxics)
    assert (type(mine), mine.toxicity, type(local)) == (plugged.MyToxic, 0.5, Local)
    assert latency == delayed.model_copy(update={"name": latency.name})


def reads(kind: str, name: str) -> None:
    """Read a model, a data set or a scenario, as a run does."""
    match kind:
        case "data":
            datasets.read(datasets.Source(name=name))
        case "model":
            models.build(name, (64,), 10, 0)
        case _:
            conditions(Settings(clients=3, scenario={"name": name}))


OTHERS = {"data": ("plugged_digits", "digits"), "model": ("linear", "logreg"), "scenario": ("SLOW", "lte")}
"""An object of `plugged` and a built-in name, of each kind without a base class."""


@pytest.mark.parametrize("kind", OTHERS)
def test_models_data_sets_and_scenarios_have_decorators_and_entry_points(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    word = "data set" if kind == "data" else kind
    own, built_in = OTHERS[kind]
    thing = getattr(plugged, own)
    assert getattr(unstale, kind)("decorated")(thing) is thing
    reads(kind, "decorated")
    installed(
        monkeypatch,
        EntryPoint("installed", f"support.plugged:{own}", plugins.GROUPS[kind]),
        EntryPoint("broken", "nowhere:it", plugins.GROUPS[kind]),
    )
    reads(kind, "installed")
    with pytest.raises(UserError, match=f"^{word} 'broken' cannot be imported from nowhere:it: No module named 'nowh"):
        reads(kind, "broken")
    with pytest.raises(UserError, match=f"^unknown {word} 'decoratd'; did you mean 'decorated'?"):
        reads(kind, "decoratd")
    getattr(unstale, kind)(built_in)(thing)
    with pytest.raises(UserError, match=f"^{word} '{built_in}' is built in; register your own by another name$"):
        reads(kind, built_in)


def test_only_the_own_configuration_names_an_installed_model_or_data_set(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint("mine", "nowhere:it", plugins.GROUPS[kind]) for kind in ("model", "data")]
    installed(monkeypatch, *points)
    with pytest.raises(UserError, match=r"^model 'mine' is code, which is not imported because another side names it"):
        models.find("mine", allow_factory=False)
    with pytest.raises(UserError, match=r"^data set 'mine' is code, which only this machine's own configuration may"):
        datasets.check(datasets.Source(name="mine", allow_factory=False))


def test_the_configuration_carries_every_name() -> None:
    parts = ("compensator", "objective", "partition", "policy", "selector", "training", "trigger", "model", "data")
    given = {
        part: {"name": plugins.name_of(part, local_copy(part) if part in EVERYTHING else object())} for part in parts
    }
    settings = Settings(**given)
    assert {part: {"name": getattr(settings, part).name} for part in parts} == given
