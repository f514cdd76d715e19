"""Rounds are stored with their compensations, so that a run can be recomputed and resumed.

Inversions may end with the available time, so no run could repeat them bit for bit.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest

from support.recorded import over_sockets, simulated
from unstale.errors import UserError
from unstale.journal.explain import explain
from unstale.journal.replay import RecordedRun, Replay
from unstale.server.run import prepare

QUICK = {"iterations": 6, "images_max": 4, "window": 2}
COMPENSATORS: dict[str, dict[str, Any]] = {
    "first-order": {"name": "first-order", "settings": {"strength": "adaptive"}},
    "gradient-inversion": {"name": "gradient-inversion", "settings": QUICK},
    "auto": {"name": "auto", "settings": {**QUICK, "margin": 0.01, "smooth_rounds": 3}},
    "oracle": {"name": "oracle"},
    "true errors": {"name": "gradient-inversion", "settings": {**QUICK, "switch": "oracle"}},
}
K_ASYNC = {"name": "k-async", "k": 3}


def recorded(path: Path, name: str) -> Any:
    return simulated(path, compensator=COMPENSATORS[name], trigger=K_ASYNC, model={"name": "logreg"})


def replayed(path: Path) -> Replay:
    with RecordedRun(path) as run:
        again = Replay(run, run.settings)
        for _ in again.rounds():
            pass
    return again


@pytest.mark.parametrize("name", COMPENSATORS)
def test_every_version_comes_out_as_it_was(name: str, tmp_path: Path) -> None:
    outcome = recorded(tmp_path / "run", name)
    again = replayed(tmp_path / "run")
    assert again.first_difference is None
    assert again.learner.sent.digest == outcome.model_digest


@pytest.mark.parametrize("name", ["first-order", "gradient-inversion", "auto"])
def test_a_server_restores_recorded_compensations(name: str, tmp_path: Path) -> None:
    outcome = recorded(tmp_path / "run", name)
    with RecordedRun(tmp_path / "run") as run:
        settings = run.settings
    again = prepare(settings)  # which compares every digest
    assert again.learner.sent.digest == outcome.model_digest
    assert again.recovered is not None and again.recovered.rounds == 12
    assert again.journal is not None
    again.journal.close()


@pytest.mark.network
def test_inversions_that_begin_on_arrival_are_kept_and_not_made_again(tmp_path: Path) -> None:
    outcome = over_sockets(
        tmp_path / "run",
        rounds=20,
        evaluate_every=20,
        compensator=COMPENSATORS["gradient-inversion"],
        trigger=K_ASYNC,
        model={"name": "logreg"},
    )
    kept = list((tmp_path / "run" / "compensations").iterdir())
    assert len(kept) == 20
    again = replayed(tmp_path / "run")
    assert again.first_difference is None
    assert again.learner.sent.digest == outcome.model_digest
    methods = set()
    with RecordedRun(tmp_path / "run") as run:
        for version in range(1, 21):
            explained = explain(run, version)
            inverted = [member for member in explained.members if member.staleness > 0]
            assert explained.policy_metrics == {"inverted_share": len(inverted) / len(explained.members)}
            for member in explained.members:
                assert member.compensation is not None
                assert (member.compensation.method == "gradient-inversion") == (member.staleness > 0)
                methods.add(member.compensation.method)
    assert methods == {"none", "gradient-inversion"}


@pytest.mark.network
def test_rows_that_checkpoints_cover_are_deleted(tmp_path: Path) -> None:
    over_sockets(
        tmp_path / "run",
        rounds=20,
        evaluate_every=20,
        run={"keep_updates": False, "checkpoint_every": 4, "durability": "full"},
        compensator=COMPENSATORS["gradient-inversion"],
        trigger=K_ASYNC,
        model={"name": "logreg"},
    )
    kept = sorted(int(path.stem) for path in (tmp_path / "run" / "compensations").iterdir())
    assert kept == list(range(17, 21))  # behind the older of the two checkpoints, of versions 16 and 20
    assert replayed(tmp_path / "run").first_difference is None


def test_a_missing_or_damaged_file_is_reported(tmp_path: Path) -> None:
    recorded(tmp_path / "run", "gradient-inversion")
    file = tmp_path / "run" / "compensations" / "00000007.safetensors"
    shutil.copy(file, tmp_path / "whole")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(UserError, match=r"00000007\.safetensors"):
        replayed(tmp_path / "run")
    file.unlink()
    with pytest.raises(UserError, match=r"00000007\.safetensors"):
        replayed(tmp_path / "run")
