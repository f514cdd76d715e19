"""A recorded run, computed again: the same bits, or the version where they part; and under another policy."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from support.recorded import over_sockets, simulated
from support.running import small
from unstale import flat
from unstale.config import Given
from unstale.errors import UserError
from unstale.journal import journal, rundir
from unstale.journal.checkpoints import read
from unstale.journal.database import Database
from unstale.journal.explain import explain
from unstale.journal.journal import Journal
from unstale.journal.replay import Comparison, Difference, Point, RecordedRun, Replay, changed
from unstale.journal.rounds import RecordedRounds
from unstale.journal.rundir import RunDirectory
from unstale.journal.segments import Segments
from unstale.policies import names
from unstale.policies.registry import find
from unstale.policies.wkafl import Wkafl
from unstale.simulator.assemble import simulation
from unstale_client.disk import DamagedError

K_ASYNC = {"name": "k-async", "k": 3}


def replayed(path: Path, **options: str) -> Replay:
    with RecordedRun(path) as run:
        again = Replay(run, changed(run.settings, given(options)))
        for _ in again.rounds():
            pass
    return again


def given(options: dict[str, str]) -> dict[str, Given]:
    return {key.replace("__", "."): Given(value=value, origin="--set") for key, value in options.items()}


def compared(path: Path, **options: str) -> tuple[Comparison, list[Point]]:
    with RecordedRun(path) as run:
        comparison = Comparison(run, run.settings, changed(run.settings, given(options)))
        points = list(comparison.points())
    return comparison, points


# ---------------------------------------------------------------------------------------------------------------- alike

OVER_SOCKETS: dict[str, dict[str, Any]] = {
    "fedbuff": {"trigger": {"name": "buffered", "k": 3}},
    "wkafl": {"trigger": K_ASYNC, "training": {"name": "gradient", "learning_rate": 0.1}},
    "fedhist": {"trigger": K_ASYNC},
}


@pytest.mark.network
@pytest.mark.parametrize("policy", OVER_SOCKETS)
def test_every_version_of_a_run_over_sockets_comes_out_as_it_was(policy: str, tmp_path: Path) -> None:
    outcome = over_sockets(tmp_path / "run", policy={"name": policy}, **OVER_SOCKETS[policy])
    again = replayed(tmp_path / "run")
    assert again.first_difference is None
    assert (again.first, again.version, again.updates) == (0, 60, 180)
    assert again.learner.sent.digest == outcome.model_digest


SIMULATED: dict[str, dict[str, Any]] = {
    "base models": {"policy": {"name": "fedasync"}},
    "a second vector": {"policy": {"name": "scaffold"}, "training": {"name": "scaffold"}},
    "once a cycle": {"policy": {"name": "gsgm"}},
    "a row of memory for each client": {"policy": {"name": "mifa"}},
    "rounds that wait for nobody": {
        "policy": {"name": "fedar"},
        "trigger": {"name": "sync"},
        "scenario": {"name": "availability-01"},
    },
    "faults": {"scenario": {"name": "flaky"}, "trigger": {"name": "buffered", "k": 3}},
    "an optimiser": {"policy": {"name": "fedbuff", "optimiser": {"name": "adam"}, "clip_norm": 1.0}},
    "the length of the updates": {"policy": {"name": "dynsgd", "norm": "mean-of-updates"}},
    "buffers": {"model": {"name": "support.factories:with_buffers"}},
    "a schedule": {"training": {"learning_rate": 0.5, "schedule": {"name": "inverse", "period": 2}}},
}


@pytest.mark.parametrize("name", SIMULATED)
def test_every_version_of_a_simulation_comes_out_as_it_was(name: str, tmp_path: Path) -> None:
    changes = {"trigger": K_ASYNC, **SIMULATED[name]}
    outcome = simulated(tmp_path / "run", **changes)
    again = replayed(tmp_path / "run")
    assert again.first_difference is None
    assert again.version == outcome.versions == 12
    assert again.learner.sent.digest == outcome.model_digest


def test_the_length_of_the_updates_changes_the_model(tmp_path: Path) -> None:
    policies: dict[str, Any] = {"plain": {"name": "dynsgd"}, "long": {"name": "dynsgd", "norm": "mean-of-updates"}}
    digests = {
        name: simulated(tmp_path / name, policy=policy, trigger=K_ASYNC).model_digest
        for name, policy in policies.items()
    }
    assert digests["plain"] != digests["long"]


def test_a_simulation_that_is_recorded_makes_the_model_of_one_that_is_not(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"clients": 6, "rounds": 12, "scenario": {"name": "flaky"}, "trigger": K_ASYNC}
    plain = simulation(small(**changes), on_progress=lambda _: None).run()
    recorded = simulated(tmp_path / "run", scenario={"name": "flaky"}, trigger=K_ASYNC)
    assert (recorded.model_digest, recorded.updates) == (plain.model_digest, plain.updates)


def test_the_journal_of_a_recorded_simulation_holds_its_received_updates(tmp_path: Path) -> None:
    outcome = simulated(tmp_path / "run", scenario={"name": "flaky"}, trigger={"name": "buffered", "k": 3})
    with RecordedRun(tmp_path / "run") as run:
        found = run.database.conservation()
        measured = [row.version for row in run.database.evaluations()]
        assert run.settings.run.keep_updates
    assert found.aggregated + found.pending == outcome.updates["accepted"]
    assert found.aggregated == 36
    assert measured == [0, 4, 8, 12]


# ------------------------------------------------------------------------------------------------------------ not alike


def test_it_ends_with_the_first_version_that_comes_out_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "run"
    training = {"learning_rate": 0.5, "schedule": {"name": "inverse", "period": 4}, "steps": 1}
    simulated(path, trigger=K_ASYNC, training=training)
    config = path / "config.yaml"
    # The inverse schedule has the same rate in the first round, whatever its period.
    config.write_text(config.read_text().replace("period: 4", "period: 5"))
    with pytest.raises(DamagedError, match=r"config\.yaml was changed: training\.schedule\.period is 5\.0"):
        replayed(path)
    database = Database(path / "run.db")
    database.set_meta({rundir.SETTINGS: ""})  # as a version of unstale that kept no text there left it
    database.close()
    again = replayed(path)
    assert (again.version, again.updates) == (1, 3)
    assert again.first_difference is not None
    assert again.first_difference.version == 2
    assert again.first_difference.computed == again.learner.sent.digest != again.first_difference.recorded


def test_it_ends_with_the_first_number_of_a_policy_that_comes_out_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated(tmp_path / "run", rounds=3, trigger=K_ASYNC, policy={"name": "wkafl", "settings": {"stage_two_round": 2}})
    with RecordedRun(tmp_path / "run") as run:
        assert [row.metrics["stage"] for row in run.database.rounds()] == [1, 1, 2]
        explained = explain(run, 3)
    assert explained.policy_metrics["stage"] == 2
    assert replayed(tmp_path / "run").first_difference is None
    monkeypatch.setattr(Wkafl, "_metrics", lambda self, _: {"stage": 1, "added_later": 4.0})
    assert replayed(tmp_path / "run").first_difference == Difference(
        version=3, recorded="2.0", computed="1.0", metric="stage"
    )


def test_a_changed_byte_of_a_row_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "run"
    simulated(path, trigger=K_ASYNC)
    segment = path / "segments/00000001.rows"
    with segment.open("r+b") as opened:
        opened.seek(5000)
        byte = opened.read(1)[0]
        opened.seek(5000)
        opened.write(bytes([byte ^ 1]))
    with pytest.raises(DamagedError, match=r"00000001\.rows is damaged between byte"):
        replayed(path)


def test_a_run_without_rounds_is_reported(tmp_path: Path) -> None:
    settings = small(run={"directory": str(tmp_path / "run")})
    Journal(RunDirectory.open(tmp_path / "run", settings), settings.run, clock=lambda: 0.0).close()
    with pytest.raises(UserError, match="has no rounds yet; replay it after the first round"):
        replayed(tmp_path / "run")


# ------------------------------------------------------------------------------------------------------- another policy


def rounds_of(path: Path) -> list[tuple[torch.Tensor, list[tuple[int, float]]]]:
    """Each round's rows, and base version and local rate of each."""
    with RecordedRun(path) as run:
        rows = RecordedRounds(run.database, Segments(run.directory.segments), run.directory.compensations, 650)
        return [
            (
                rows.matrix(updates := list(run.database.updates_of(row.version))),
                [(update.staged.base_version, update.staged.local_rate) for update in updates],
            )
            for row in run.database.rounds()
        ]


def test_folding_under_the_policy_that_it_had_gives_the_same_curve(tmp_path: Path) -> None:
    simulated(tmp_path / "run", trigger=K_ASYNC, policy={"name": "dynsgd"})
    comparison, points = compared(tmp_path / "run", policy__name="dynsgd")
    assert [point.version for point in points] == [0, 4, 8, 12]
    for point in points:
        assert point.other_metrics == point.metrics
    assert comparison._learner.sent.digest == comparison.replay.learner.sent.digest


def test_another_policy_folds_the_recorded_rows(tmp_path: Path) -> None:
    # By hand: direct takes w - eta * the mean of the round's rows, whatever fedbuff made of them.
    simulated(tmp_path / "run", trigger=K_ASYNC)
    comparison, points = compared(tmp_path / "run", policy__name="direct")
    first = replayed_model_at_zero(tmp_path / "run")
    expected_d = first - 0.5 * sum(matrix.mean(dim=0) for matrix, _ in rounds_of(tmp_path / "run"))
    torch.testing.assert_close(comparison._learner.model_d, expected_d, rtol=0, atol=1e-5)
    assert points[0].other_metrics == points[0].metrics
    assert points[-1].other_metrics["loss"] != points[-1].metrics["loss"]


def replayed_model_at_zero(path: Path) -> torch.Tensor:
    with RecordedRun(path) as run:
        return Replay(run, run.settings).learner.model_d


def test_the_models_that_a_policy_asks_for_are_the_recorded_ones(tmp_path: Path) -> None:
    # By hand: direct with stale_form=model makes the mean of the models that the clients ended with. They ended at the
    # recorded version less eta_l times the row, whatever this policy made before.
    simulated(tmp_path / "run", trigger=K_ASYNC)
    options = {"policy__name": "direct", "policy__settings__stale_form": "model"}
    comparison, _ = compared(tmp_path / "run", **options)
    assert comparison.needs_base_models
    versions = [replayed_model_at_zero(tmp_path / "run")]
    with RecordedRun(tmp_path / "run") as run:
        again = Replay(run, run.settings)
        versions += [again.learner.model_d for _ in again.rounds()]
    matrix_Kd, sent = rounds_of(tmp_path / "run")[-1]
    assert {base for base, _ in sent} != {11}  # some of it is stale, else this would say nothing
    ends = [versions[base] - rate * row_d for row_d, (base, rate) in zip(matrix_Kd, sent, strict=True)]
    torch.testing.assert_close(comparison._learner.model_d, torch.stack(ends).mean(dim=0), rtol=0, atol=1e-5)


@pytest.mark.parametrize("policy", [name for name in names() if find(name).training is None])
def test_every_policy_for_any_training_folds_a_record(policy: str, tmp_path: Path) -> None:
    simulated(tmp_path / "run", trigger={"name": "k-async", "k": 5})
    options = {f"policy__settings__{key}": str(value) for key, value in find(policy).example_settings.items()}
    comparison, points = compared(tmp_path / "run", policy__name=policy, **options)
    assert comparison.replay.first_difference is None
    assert len(points) == 4
    assert flat.is_finite(comparison._learner.model_d)


def test_settings_of_the_recorded_policy_stay_with_it_and_its_other_keys_stay(tmp_path: Path) -> None:
    policy = {"name": "dynsgd", "settings": {"normalise": False}, "server_multiplier": 0.5}
    recorded = small(policy=policy)
    other = changed(recorded, given({"policy__name": "wkafl", "policy__settings__beta": "20"}))
    assert other.policy.settings == {"beta": 20}
    assert other.policy.server_multiplier == 0.5
    same = changed(recorded, given({"policy__server_multiplier": "2"}))
    assert same.policy.settings == {"normalise": False}
    assert same.policy.server_multiplier == 2
    assert same.model_copy(update={"policy": recorded.policy}) == recorded


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"policy__name": "fedbuf"}, "unknown policy 'fedbuf'; did you mean 'fedbuff'"),
        ({"policy__name": "moon"}, "for clients that train with 'moon', and those of this run trained with"),
        ({"policy__settings__bata": "1"}, "unknown setting 'bata' of policy 'fedbuff'"),
        ({"rounds": "5"}, "--set: rounds cannot differ from the recorded run, expected a key of policy"),
        ({"polcy__name": "x"}, "--set: unknown key 'polcy.name'"),
    ],
)
def test_an_impossible_replay_is_reported_in_one_sentence(
    options: dict[str, str], sentence: str, tmp_path: Path
) -> None:
    simulated(tmp_path / "run", trigger=K_ASYNC, rounds=2)
    with pytest.raises(UserError, match=sentence):
        compared(tmp_path / "run", **options)


def test_updates_that_lean_on_a_second_vector_are_for_one_policy(tmp_path: Path) -> None:
    scaffold: dict[str, Any] = {"policy": {"name": "scaffold"}, "training": {"name": "scaffold"}}
    simulated(tmp_path / "run", trigger=K_ASYNC, rounds=4, **scaffold)
    with pytest.raises(UserError, match="and a second vector of policy 'scaffold'"):
        compared(tmp_path / "run", policy__name="fedavg")
    _, points = compared(tmp_path / "run", policy__server_multiplier="0.5")
    assert [point.version for point in points] == [0, 4]


# ------------------------------------------------------------------------------------------- after updates were deleted


@pytest.fixture
def shortened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of 60 rounds with checkpoints every ten and a few updates in a segment, so that old ones are gone."""
    monkeypatch.setattr(journal, "Segments", partial(Segments, segment_bytes=20_000))
    path = tmp_path / "run"
    over_sockets(path, trigger=K_ASYNC, run={"keep_updates": False, "checkpoint_every": 10})
    assert not (path / "segments/00000001.rows").exists()
    return path


@pytest.mark.network
def test_a_run_that_deleted_updates_is_computed_from_its_oldest_checkpoint(shortened: Path) -> None:
    again = replayed(shortened)
    assert again.first_difference is None
    assert (again.first, again.version, again.updates) == (50, 60, 30)
    # Another policy begins there with the recorded model, and one that asks for older models is refused.
    _, points = compared(shortened, policy__name="direct")
    state, _ = read(shortened / "checkpoints/00000050.safetensors")
    assert state["learner"]["version"] == 50
    assert [point.version for point in points] == [60]
    with pytest.raises(UserError, match=r"is no longer stored, .* record a run with --run\.keep-updates"):
        compared(shortened, policy__name="fedasync")


@pytest.mark.network
def test_a_damaged_checkpoint_gives_way_to_the_next(shortened: Path) -> None:
    (shortened / "checkpoints/00000050.safetensors").write_bytes(b"torn")
    again = replayed(shortened)
    assert (again.first, again.version, again.first_difference) == (60, 60, None)
    (shortened / "checkpoints/00000060.safetensors").unlink()
    with pytest.raises(DamagedError, match=r"00000060\.safetensors is missing"):
        replayed(shortened)
