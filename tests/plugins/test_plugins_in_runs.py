"""Runs with parts of a user's own: they equal runs with the built-in parts that compute the same."""

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import unstale
from support import apps, plugged
from support.running import small
from unstale import plugins
from unstale.cli import main
from unstale.client.workspace import training_context_of
from unstale.compensators import Outcome
from unstale.config import Settings, workspace
from unstale.config.settings import RunSettings
from unstale.config.workspace import training_context
from unstale.coordinator.triggers import Trigger
from unstale.errors import UserError
from unstale.metrics import progress
from unstale.server.welcome import welcome
from unstale.simulator.assemble import simulation
from unstale.simulator.backends.backend import Loop
from unstale.simulator.backends.choose import choose
from unstale.simulator.backends.processes import Processes

BUILT_IN: dict[str, dict[str, Any]] = {
    "policy": {"name": "fedavg"},
    "trigger": {"name": "k-async", "k": 2},
    "selector": {"name": "all"},
    "partition": {"name": "iid"},
    "training": {"name": "sgd", "steps": 2},
    "objective": {"name": "classification"},
    "compensator": {"name": "none"},
    "model": {"name": "logreg"},
}
OWN = {part: f"support.plugged:{part_class.__name__}" for part, part_class in plugged.EVERYTHING.items()}
OWN |= {"model": "support.plugged:linear"}
OF_CLIENTS = ("partition", "training", "objective", "model")


@pytest.fixture(autouse=True)
def _of_this_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "_objects", {})


def with_own(*parts: str, names: dict[str, str] = OWN, **changes: Any) -> Settings:
    """The settings of a run, with parts of a user's own in place of these."""
    chosen = {part: {**given, "name": names[part]} if part in parts else given for part, given in BUILT_IN.items()}
    return small(clients=4, rounds=6, evaluate_every=6, **{**chosen, **changes})


def run(settings: Settings, record_in: Path | None = None) -> progress.Outcome:
    settings = settings.model_copy(update={"run": RunSettings()})
    return simulation(settings, on_progress=lambda _: None, record_in=record_in).run()


def local(part: str) -> Any:
    """A class or function of a user that no module has."""
    if part == "model":
        return lambda input_shape, classes: plugged.linear(input_shape, classes)
    return type("Mine", (plugged.EVERYTHING[part],), {"__doc__": "Mine.", "__module__": "__main__"})


def test_own_parts_that_compute_the_same_give_the_same_run() -> None:
    expected = run(with_own())
    found = run(with_own(*BUILT_IN))
    assert (found.model_digest, found.metrics, found.updates) == (
        expected.model_digest,
        expected.metrics,
        expected.updates,
    )
    objects = {part: plugins.name_of(part, local(part)) for part in BUILT_IN}
    assert set(objects.values()) == {"<Mine>", "<lambda>"}
    assert run(with_own(*BUILT_IN, names=objects)).model_digest == expected.model_digest


def test_settings_of_own_parts_come_from_python_and_from_options(capsys: pytest.CaptureFixture[str]) -> None:
    few = {"clients": 4, "rounds": 3, "model": "logreg", "progress": False}
    made = unstale.simulate(
        **few,
        trigger={"name": plugged.WithSettings, "k": 2, "settings": {"level": 0.5}},
        **{"selector.name": plugged.EvenSelector, "selector.settings.even": True},
    )
    assert (made.settings.trigger.settings, made.settings.selector.settings) == ({"level": 0.5}, {"even": True})
    assert made.digest == unstale.simulate(**few, trigger={"name": "k-async", "k": 2}).digest
    options = ["--trigger", "support.plugged:WithSettings", "--set", "trigger.settings.level=0.5"]
    assert main.run(["config", "show", *options]) == 0
    assert "  settings:\n    level: 0.5\n" in capsys.readouterr().out
    assert main.run(["simulate", "--clients", "4", *options[:2], "--set", "trigger.settings.levle=1"]) == 2
    assert capsys.readouterr().err.startswith("unstale: unknown setting 'levle' of trigger 'support.plugged:WithSett")


def test_worker_processes_import_the_parts_of_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "decorated_parts.py").write_text(
        "import unstale\n"
        "from support.plugged import MyPartition\n\n\n"
        '@unstale.partition("decorated")\n'
        "class Decorated(MyPartition):\n"
        '    """As `iid`."""\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("decorated_parts")
    names = {**OWN, "partition": "decorated"}
    several = {"simulation": {"backend": "processes", "processes": 2}}
    expected = run(with_own())
    assert run(with_own(*OF_CLIENTS, names=names, **several)).model_digest == expected.model_digest


@pytest.mark.parametrize("part", OF_CLIENTS)
def test_an_object_of_this_process_is_computed_in_it_alone(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unstale.simulator.backends.choose._is_worth_it", lambda *_: True)
    monkeypatch.setattr(Processes, "__init__", lambda *_: pytest.fail("a worker process was started"))
    names = {part: plugins.name_of(part, local(part))}
    automatic = with_own(part, names=names, simulation={"backend": "auto", "processes": 2})
    assert isinstance(choose(automatic, training_context(automatic), 2), Loop)
    by_name = with_own(part, names=names, simulation={"backend": "processes", "processes": 2})
    with pytest.raises(UserError) as caught:
        choose(by_name, training_context(by_name), 2)
    assert str(caught.value) == (
        f"simulation.backend is 'processes' with {part} {names[part]!r}, an object that other processes cannot "
        "import; define it in a module, or set simulation.backend to loop"
    )


def test_an_app_of_this_process_is_computed_in_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Processes, "__init__", lambda *_: pytest.fail("a worker process was started"))
    name = plugins.name_of("app", replace(apps.shared))
    settings = Settings(device="cpu", app=name, clients=4, simulation={"backend": "processes", "processes": 2})
    with pytest.raises(UserError, match=r"^simulation.backend is 'processes' with app '<App>', an object that other"):
        choose(settings, training_context(settings), 2)
    assert plugins.name_of("app", apps.shared) == "support.apps:shared"


@pytest.mark.parametrize("part", ["partition", "training"])
def test_a_client_imports_a_part_only_if_its_own_user_names_it(part: str) -> None:
    settings = with_own(part)
    received = welcome(settings, workspace.make_workspace(settings).model, extra=False)
    with pytest.raises(UserError) as caught:
        training_context_of(received, Settings(device="cpu"))
    assert str(caught.value).startswith(
        f"{part} {OWN[part]!r} is code, which only this machine's own configuration may name; give it the same "
    )
    own = Settings(device="cpu", **{part: {"name": OWN[part]}})
    made = training_context_of(received, own).trainer
    expected = training_context(settings).trainer
    assert made.training == expected.training
    assert [len(made.examples(client_id)) for client_id in range(4)] == [361, 361, 360, 360]
    if part == "training":
        assert (type(made.training).__name__, made.training.model_dump()["steps"]) == ("MyTraining", 2)


def test_a_recorded_run_is_replayed_with_the_parts_of_modules(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(with_own(*BUILT_IN), tmp_path / "run")
    assert main.run(["replay", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out == "6 rounds, 12 updates, all digests equal\n"
    assert main.run(["explain", str(tmp_path / "run"), "1"]) == 0
    assert "support.plugged:MyTrigger decides when a round closes" in capsys.readouterr().out


def test_a_recorded_run_with_an_object_needs_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(with_own("policy", names={"policy": plugins.name_of("policy", local("policy"))}), tmp_path / "run")
    assert main.run(["replay", str(tmp_path / "run")]) == 0
    monkeypatch.setattr(plugins, "_objects", {})
    assert main.run(["replay", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err == (
        "unstale: policy '<Mine>' is an object of the process that started the run, which this process does not have; "
        "define it in a module, and name it package.module:name\n"
    )
    assert main.run(["explain", str(tmp_path / "run")]) == 0, "which needs no policy"


class Greedy(Trigger):
    def __init__(self, size: int) -> None:
        object.__setattr__(self, "answer", size)

    def take(self, *, pending: int, outstanding: int, due: bool) -> int | None:
        return self.answer if pending else None


@pytest.mark.parametrize("size", [-1, 0, 3])
def test_a_trigger_that_closes_with_a_wrong_number_of_updates_is_told_so(size: int) -> None:
    with pytest.raises(UserError) as caught:
        run(
            with_own(
                "trigger", names={"trigger": plugins.name_of("trigger", Greedy(size))}, trigger={"name": "<Greedy>"}
            )
        )
    assert str(caught.value) == (
        f"trigger Greedy closes a round with {size} of 1 pending updates, expected 1 to 1, or None where the round "
        "stays open"
    )


@pytest.mark.parametrize("chosen", [[9], [1, 0], [0, 0]])
def test_a_selector_that_chooses_other_clients_is_told_so(chosen: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugged.MySelector, "choose", lambda self, candidates, **_: chosen)
    unstale.selector("wrong")(plugged.MySelector)
    with pytest.raises(UserError) as caught:
        run(with_own("selector", names={"selector": "wrong"}))
    assert str(caught.value).startswith(f"selector 'wrong' chooses {chosen}, expected some of the clients [0")


def test_a_compensator_that_forgets_updates_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugged.MyCompensator, "take", lambda *_: Outcome(vectors={}, counts_as_fresh=(), updates=()))
    with pytest.raises(UserError, match=r"^compensator MyCompensator describes 0 of 2 updates in Outcome.updates"):
        run(with_own("compensator"))
