"""`unstale.simulate`: the run of the shell's command, with its checks, and tables computed by hand."""

import json
import logging
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

import unstale
from support import line
from support.line import IN_ROUNDS, STEP
from support.running import small
from unstale import flat
from unstale.cli import main
from unstale.journal.rundir import SEGMENTS
from unstale.policies.fedavg import FedAvg
from unstale.report import recorded
from unstale.simulator.assemble import simulation

SMALL: dict[str, Any] = {"clients": 4, "rounds": 4, "model": "logreg", "device": "cpu", "evaluate_every": 2}


def test_a_run_is_that_of_the_command_bit_for_bit(capsys: pytest.CaptureFixture[str]) -> None:
    options = "--clients 4 --rounds 4 --policy fedbuff --scenario lte --seed 3 --model logreg --device cpu --k 2"
    assert main.run(["simulate", *options.split(), "--alpha", "0.5", "--json"]) == 0
    finished = json.loads(capsys.readouterr().out.splitlines()[-1])
    run = unstale.simulate(
        clients=4, rounds=4, policy="fedbuff", seed=3, model="logreg", device="cpu", trigger={"k": 2},
        **{"partition.alpha": 0.5},
    )  # fmt: skip
    assert run.digest == finished["model_digest"]
    assert run.metrics == finished["metrics"]
    assert run.seconds == pytest.approx(finished["seconds"], abs=1e-12)


def test_a_key_is_a_name_or_a_mapping_or_dotted() -> None:
    mapped = unstale.simulate(**SMALL, policy={"name": "fedasync", "settings": {"alpha": 0.3}})
    dotted = unstale.simulate(**SMALL, policy="fedasync", **{"policy.settings.alpha": 0.3})
    replaced = unstale.simulate(**SMALL, **{"policy.name": "fedasync", "policy.settings": {"alpha": 0.3}})
    assert mapped.digest == dotted.digest == replaced.digest
    assert mapped.settings.policy.name == "fedasync" and mapped.settings.policy.settings == {"alpha": 0.3}
    assert mapped.settings.scenario.name == "lte"


def test_numbers_of_numpy_and_paths_are_values(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    rounds = torch.tensor(2).numpy()
    run = unstale.simulate(**{**SMALL, "rounds": rounds}, save_model=file)
    assert len(run.rounds) == 2 and file.exists()


@pytest.mark.parametrize("app", [line.app, "support.line:app"])
def test_tables_are_those_computed_by_hand(app: Any) -> None:
    run = unstale.simulate(app, **IN_ROUNDS, evaluate_every=1, evaluate_clients_every=1)
    assert run.rounds.version.tolist() == [1, 2, 3, 4]
    assert run.rounds.updates.tolist() == [3, 3, 3, 3]
    assert sorted(run.updates.client_id) == sorted([0, 1, 2] * 4)
    assert (run.updates.staleness_rounds == 0).all()
    weights = run.updates.groupby("client_id").weight.first()
    assert weights.tolist() == pytest.approx([1 / 6, 2 / 6, 3 / 6])
    assert run.clients.client_id.tolist() == [0, 1, 2]
    assert run.clients.aggregated.tolist() == [4, 4, 4]
    assert run.clients.weight_share_ratio.tolist() == pytest.approx([1 / 6, 2 / 6, 3 / 6])
    # Client c measures w + c with c + 1 examples: on average w + (0 * 1 + 1 * 2 + 2 * 3) / 6.
    # Version v is measured by the clients in the next round.
    measured = run.evaluations[run.evaluations.version >= 2]
    assert measured.version.tolist() == [2, 3, 4] and set(measured.split) == {"clients"}
    assert measured.value.tolist() == pytest.approx([-STEP * version + 8 / 6 for version in (1, 2, 3)])
    assert measured.elapsed_s.tolist() == run.rounds.applied_elapsed_s[1:].tolist()
    assert run.metrics == pytest.approx({"value": -3 * STEP + 8 / 6})
    assert run.clients.value.tolist() == pytest.approx([-3 * STEP + client_id for client_id in range(3)])
    assert run.model["w"].tolist() == pytest.approx([-4 * STEP])
    assert run.digest == flat.digest(run.model["w"]) == run.rounds.digest.iloc[-1]
    assert run.main.name == "value" and not run.main.higher_is_better
    assert run.settings.app == "support.line:app"


def test_metrics_are_of_the_test_set_first_and_of_the_training_last() -> None:
    central = unstale.simulate(line.central, **IN_ROUNDS, evaluate_every=2)
    assert set(central.evaluations.split) == {"central"}
    assert central.evaluations.version.tolist() == [0, 2, 4]
    assert central.evaluations.value.tolist() == pytest.approx([0, -2 * STEP, -4 * STEP])
    assert [*central.metrics] == ["value", "loss"]
    trained = unstale.simulate(line.app, **IN_ROUNDS, evaluate_every=2, evaluate_clients_every=None)
    assert set(trained.evaluations.split) == {"training"}
    assert trained.evaluations.version.tolist() == [2, 4]
    assert trained.metrics == pytest.approx({"loss": 14 / 6})


def test_an_app_may_be_a_local_variable() -> None:
    app = unstale.App(model=line.Line, data=line.own, train=line.train, exchange=["w"])
    assert unstale.simulate(app, **IN_ROUNDS).model["w"].tolist() == pytest.approx([-4 * STEP])


def test_an_object_may_stand_in_place_of_a_name() -> None:
    named = unstale.simulate(**SMALL, policy="fedavg", scenario="slow-tenth")
    slow = {"task": {"distribution": "exponential", "mean_s": 1}}
    groups = [
        {"name": "everyone", "device": slow},
        {"name": "slow", "clients": {"share": 0.1}, "device": {**slow, "factor": 2}},
    ]
    scenario = {"description": "the same", "groups": groups}
    made = unstale.simulate(**SMALL, policy=FedAvg, scenario=scenario)
    assert made.digest == named.digest and made.seconds == named.seconds
    assert made.settings.policy.name == "unstale.policies.fedavg:FedAvg"
    assert unstale.simulate(**SMALL, policy={"name": FedAvg}, scenario={"name": scenario}).digest == named.digest


def test_a_directory_records_a_run_that_replays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = unstale.simulate(**SMALL, directory=tmp_path / "run")
    assert main.run(["replay", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out == f"4 rounds, {run.updates.version.count()} updates, all digests equal\n"
    with pytest.raises(unstale.UserError, match="is a file or not empty, expected a new directory"):
        unstale.simulate(**SMALL, directory=tmp_path / "run")


def test_a_run_without_a_directory_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    run = unstale.simulate(**SMALL)
    assert not [*tmp_path.iterdir()]
    assert len(run.rounds) == 4


MISTAKES = [
    ({"rounds": 0}, "argument rounds: rounds is 0, expected a whole number from 1 to 1,000,000,000"),
    ({"rounds": "many"}, "argument rounds: rounds is 'many', expected a whole number from 1 to 1,000,000,000"),
    ({"policy": "fedbuf"}, "unknown policy 'fedbuf'; did you mean 'fedbuff'?"),
    ({"policy": {"name": "fedbuff", "settings": {"alfa": 1}}}, "unknown setting 'alfa' of policy 'fedbuff'"),
    ({"policy": 3}, "argument policy: policy.name is 3, expected a text of 1 to 128 characters"),
    ({"training": {"learning_rat": 1}}, "argument training: unknown key 'learning_rat' in training; did you mean"),
    ({"training": {"settings": {"lr": 1}}}, "^unknown setting 'lr' of training 'sgd'; expected one of batch_size"),
    ({"training.learning_rate": -1}, "argument training.learning_rate: training.learning_rate is -1, expected"),
    ({"polici": "fedbuff"}, "argument polici: unknown key 'polici'; did you mean 'policy'?"),
    ({"encoding": 3}, "argument encoding: encoding is 3, expected a mapping of keys"),
    (
        {"training": {"learning_rate": 1}, "training.learning_rate": 2},
        "argument training.learning_rate: training.learning_rate is given by argument training too; leave one of",
    ),
    ({"app": 3}, "app is of type int, expected an unstale.App, or its module:name"),
    ({"app": "nowhere:app", "model": {}}, "app 'nowhere:app' cannot be imported"),
    ({"seeds": []}, r"seeds is \[\], expected a list of values"),
    ({"seed": 1, "seeds": [1]}, r"seed is 1 and seeds \[1\], expected one of them"),
    ({"run": {"durability": "off"}}, "run.durability is off, but the tables of a run are read from its journal"),
]


@pytest.mark.parametrize(("mistake", "message"), MISTAKES, ids=[str(mistake) for mistake, _ in MISTAKES])
def test_a_mistake_is_one_sentence(mistake: dict[str, Any], message: str) -> None:
    with pytest.raises(unstale.UserError, match=message):
        unstale.simulate(**{**SMALL, **mistake})


def test_a_run_leaves_the_process_as_it_was(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("UNSTALE_ROUNDS", "not a number")
    numbers = [signal.SIGINT, signal.SIGTERM]

    def state() -> Any:
        handlers = [signal.getsignal(number) for number in numbers]
        return handlers, logging.root.handlers[:], logging.root.level, torch.get_num_threads(), [*sys.path]

    torch.set_num_threads(2)
    try:
        before = state()
        unstale.simulate(**SMALL)
        assert state() == before
    finally:
        torch.set_num_threads(1)
    assert capfd.readouterr() == ("", "")


def test_a_progress_bar_has_round_metric_and_time(capsys: pytest.CaptureFixture[str]) -> None:
    unstale.simulate(line.central, **IN_ROUNDS, progress=True)
    shown = " ".join(capsys.readouterr().out.split())
    assert "round 4/4" in shown
    assert f"value {-4 * STEP:.4f}" in shown
    assert shown.endswith("s of virtual time")


def test_the_package_imports_no_torch_and_lists_its_names() -> None:
    code = "import sys, unstale; assert {*unstale.__all__} <= {*dir(unstale)}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    for name in unstale.__all__:
        assert callable(getattr(unstale, name))
    assert issubclass(unstale.UserError, Exception)


def test_a_recording_for_tables_has_all_rows_and_no_vectors(tmp_path: Path) -> None:
    for name, keeps in (("all", True), ("tables", False)):
        simulation(small(run={}), on_progress=lambda _: None, record_in=tmp_path / name, keep_updates=keeps).run()
    every, tables = (recorded.read(tmp_path / name, name) for name in ("all", "tables"))
    assert tables.updates.equals(every.updates) and tables.rounds.equals(every.rounds)
    sizes = [sum(file.stat().st_size for file in (tmp_path / name / SEGMENTS).iterdir()) for name in ("all", "tables")]
    assert sizes == [16 + 4 * 650 * len(every.updates), 16]  # behind the header of the file


def test_a_run_that_did_not_reach_its_value_has_the_last_one_in_a_line() -> None:
    run = unstale.simulate(**SMALL, run={"until": "accuracy > 1"})
    last = run.metrics["accuracy"]
    assert run.missed == f"run.until, accuracy > 1, was not reached in 4 rounds; the last accuracy is {last:.4f}"
    assert repr(run).endswith(f"s of virtual time; {run.missed}>")
    assert unstale.simulate(**SMALL, run={"until": "accuracy > 0"}).missed is None
    assert unstale.simulate(**SMALL).missed is None
