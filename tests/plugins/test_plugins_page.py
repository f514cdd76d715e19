"""docs/plugins.md: its contracts are those of the code, and its examples run."""

import importlib
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml

import unstale
from unstale import plugins
from unstale.config import Settings
from unstale.config.data import ClientData, read_dataset
from unstale.coordinator import selectors, triggers
from unstale.errors import UserError
from unstale.metrics.progress import Outcome
from unstale.simulator.assemble import simulation
from unstale.training.partition import Examples

PAGE = (Path(__file__).parents[2] / "docs/plugins.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def my_parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The module of all examples, in a folder of its own, to which the last one but one writes its file."""
    folder = tmp_path_factory.mktemp("plugins")
    (folder / "my_parts.py").write_text("\n\n".join(blocks("python")), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plugins, "_objects", {})
        patch.syspath_prepend(folder)
        patch.chdir(folder)
        yield importlib.import_module("my_parts")
    sys.modules.pop("my_parts")


def rows() -> list[list[str]]:
    table = re.findall(r"^\| (\[.*) \|$", PAGE, re.MULTILINE)
    return [[cell.strip().strip("`") for cell in row.split("|")] for row in table]


def test_the_table_has_every_kind_with_its_base_class_group_and_decorator() -> None:
    kinds = {re.match(r"\[(\w+)\]", row[0])[1]: row for row in rows()}  # type: ignore[index]
    assert kinds.keys() == plugins.GROUPS.keys()
    for kind, (_, base, _, group, decorator) in kinds.items():
        assert group == plugins.GROUPS[kind]
        assert getattr(unstale, decorator.removeprefix("@unstale."))("x") is not None
        if base:
            module, _, name = base.rpartition(".")
            assert isinstance(getattr(importlib.import_module(module), name), type)
    decorators = {decorator.removeprefix("@unstale.") for *_, decorator in kinds.values()}
    assert decorators == {
        name for name in unstale.__all__ if name.islower() and getattr(unstale, name).__module__ == plugins.__name__
    }


def test_every_group_is_shown_and_its_example_is_a_part(my_parts: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = blocks("toml")
    groups = tomllib.loads(block)["project"]["entry-points"]
    points = [EntryPoint(name, value, group) for group, values in groups.items() for name, value in values.items()]
    monkeypatch.setattr(plugins, "entry_points", lambda **wanted: EntryPoints(points).select(**wanted))
    assert {point.group for point in points} == set(plugins.GROUPS.values())
    registries = [importlib.import_module(module).REGISTRY for module in (
        "unstale.compensators.registry", "unstale.coordinator.selectors", "unstale.coordinator.triggers",
        "unstale.policies.registry", "unstale.toxics.registry", "unstale.training.objectives",
        "unstale.trackers.registry", "unstale.training.partition", "unstale.training.registry",
    )]  # fmt: skip
    for registry in registries:
        (point,) = (point for point in points if point.group == registry.group)
        assert registry.find(point.name) is getattr(my_parts, point.value.partition(":")[2])
    for kind in ("data", "model", "scenario"):
        (point,) = (point for point in points if point.group == plugins.GROUPS[kind])
        assert plugins.object_of(kind, point.name) is getattr(my_parts, point.value.partition(":")[2])


def run(parts: dict[str, Any]) -> Outcome:
    return simulation(Settings(clients=4, rounds=6, evaluate_every=6, **parts), on_progress=lambda _: None).run()


def test_the_examples_are_the_parts_of_a_run(my_parts: ModuleType) -> None:
    model_and_data = {"model": {"name": "my_parts:mlp"}, "data": {"name": "my_parts:halves"}}
    others = {
        "partition": {"name": "my_parts:EveryNth"},
        "training": {"name": "my_parts:SignSgd", "learning_rate": 0.01},
        "trigger": {"name": "my_parts:half_of_three"},
        "selector": {"name": "my_parts:EvenFirst", "size": 3},
        "policy": {"name": "my_parts:Equal"},
        "compensator": {"name": "my_parts:Discount", "settings": {"factor": 0.5}},
        "scenario": {"name": "my_parts:jammed"},
    }
    outcome = run(model_and_data | others)
    assert (outcome.versions, outcome.updates["rejected"]) == (6, 0)
    assert outcome.metrics["accuracy"] > 0.6
    for part in others:
        without = {name: chosen for name, chosen in others.items() if name != part}
        other = run(model_and_data | {"trigger": {"k": 3}} | without)
        assert (other.model_digest, other.seconds) != (outcome.model_digest, outcome.seconds), f"{part} has no effect"


def test_the_examples_do_what_they_say(my_parts: ModuleType) -> None:
    half = my_parts.Half(k=3)
    taken = [half.take(pending=pending, outstanding=outstanding, due=False) for pending, outstanding in
             [(0, 0), (1, 2), (2, 2), (5, 1)]]  # fmt: skip
    assert taken == [None, None, 2, 3]
    (settings,) = (yaml.safe_load(block) for block in blocks("yaml"))
    early = triggers.create(Settings(**settings).trigger)
    assert early == my_parts.Half(k=10, share=0.5)
    assert early.take(pending=1, outstanding=2, due=False) == 1
    assert my_parts.EvenFirst(size=3).choose([1, 2, 3, 4], busy=1, seed=0, key=(0,)) == [2, 4]
    shares = my_parts.EveryNth().partitions(Examples(torch.zeros(5).long().numpy()), 2, None)
    assert [share.tolist() for share in shares] == [[0, 2, 4], [1, 3]]
    with pytest.raises(UserError, match=r"^1 examples are too few for 2 clients"):
        my_parts.EveryNth().check(Examples(torch.zeros(1).long().numpy()), 2)
    # errors 1 and -1: (0.9 * 1 + 0.1 * 1) / 2
    assert my_parts.Quantile().loss(torch.tensor([0.0, 2.0]), torch.tensor([1.0, 1.0])).item() == pytest.approx(0.5)
    assert triggers.create(Settings(trigger={"name": "pairs", "k": 4}).trigger) == my_parts.Pairs(k=4)
    assert isinstance(selectors.REGISTRY.find("my_parts:EvenFirst"), type)


def test_the_file_is_a_data_set_whose_clients_are_its_column(my_parts: ModuleType) -> None:
    settings = Settings(
        clients=12, data={"name": "npz", "path": "mine.npz", "column": "site"}, partition={"name": "column"}
    )
    data = read_dataset(settings.data)
    shares = ClientData.of(settings, data).train()
    assert sum(map(len, shares)) == 469
    assert sorted(len(set(data.groups("train")[share])) for share in shares) == [1] * 12
