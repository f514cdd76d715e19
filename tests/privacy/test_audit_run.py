"""A whole audit: a simulated run, the inversion of its stale updates, and the comparison with data."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from unstale.compensators import StaleUpdate
from unstale.compensators.inversion.reconstruction import Reconstruction
from unstale.compensators.inversion.state import Inversion
from unstale.config import Settings
from unstale.config.workspace import training_context
from unstale.errors import UserError
from unstale.metrics.progress import Progress
from unstale.privacy import audit as module
from unstale.privacy.audit import Audit, audit
from unstale.simulator.assemble import simulation

FEW = {"iterations": 3, "adapt": False, "iterations_min": 1, "images_max": 4}


def settings(**changes: Any) -> Settings:
    given: dict[str, Any] = {
        "clients": 6,
        "rounds": 6,
        "model": {"name": "logreg"},
        "partition": {"name": "dirichlet-client", "alpha": 0.3, "budget": 30},
        "trigger": {"name": "k-async", "k": 2},
        "compensator": {"settings": FEW},
        **changes,
    }
    return Settings(**given)


def played(rounds: Sequence[int] = (5, 6), updates_max: int = 10, **changes: Any) -> Audit:
    return audit(settings(**changes), rounds, updates_max=updates_max)


def test_every_reconstructed_example_is_compared() -> None:
    done = played()
    assert done.findings.updates == len(done.reconstructed) > 1
    assert done.findings.examples == 4 * done.findings.updates
    assert [measure.name for measure in done.measures[:2]] == ["PSNR", "SSIM"]
    for one in done.reconstructed:
        assert one.round in (5, 6)
        assert one.staleness > 0
        assert one.pixels_rX.shape == (4, 1, 8, 8)
        assert 0 <= float(one.pixels_rX.min()) <= float(one.pixels_rX.max()) <= 1
        in_pool = one.matches.pool_examples
        assert in_pool["own"] == in_pool["others"] >= in_pool["own_same_classes"] == in_pool["same_classes"]
        for pool, closest_rX in one.closest.items():
            mse_r = (one.pixels_rX - closest_rX).square().mean((1, 2, 3)).double()
            expected = (-10 * mse_r.log10()).numpy()
            assert one.matches.best["psnr"][pool] == pytest.approx(expected, abs=1e-3)


def test_an_audit_repeats_to_the_bit() -> None:
    first, second = played(), played()
    assert first.findings == second.findings
    for one, other in zip(first.reconstructed, second.reconstructed, strict=True):
        assert torch.equal(one.pixels_rX, other.pixels_rX)
        assert one.disparity == other.disparity


def test_the_clients_own_data_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = training_context(settings()).trainer

    def know(watch: Any, updates: Sequence[StaleUpdate]) -> tuple[list[Inversion], list[list[float]]]:
        ones = []
        for update in updates:
            one = watch._inversions.begin(update)
            inputs_nX, labels_n = trainer.tensors(update.client_id)
            labels_nC = 100.0 * torch.nn.functional.one_hot(labels_n, 10)
            one.now = Reconstruction(inputs_rX=inputs_nX, labels_rC=labels_nC)
            ones.append(one)
        return ones, [[0.0] for _ in ones]

    monkeypatch.setattr(module._Watch, "_invert", know)
    done = played()
    psnr, ssim = done.findings.measures[:2]
    assert psnr.pools["own"].p5 == 100.0
    assert ssim.pools["own"].p5 == pytest.approx(1.0, abs=1e-5)
    for measure in (psnr, ssim):
        for difference in measure.closer.values():
            assert difference.closer_share > 0.95
            assert difference.low > 0
    assert done.findings.label_distance["own"] == pytest.approx(0.0, abs=1e-6)
    assert done.findings.label_distance["others"] > 0.2


def test_an_audit_does_not_change_the_run() -> None:
    plain: list[Progress] = []
    watched: list[Progress] = []
    same: dict[str, Any] = {"evaluate_every": 1, "compensator": {}}
    simulation(settings(**same), on_progress=plain.append).run()
    audit(settings(**same, rounds=6), [2, 5], updates_max=9, on_progress=watched.append)
    assert [now.version for now in watched] == [0, 1, 2, 3, 4]  # and not beyond the last round
    assert [now.metrics["loss"] for now in watched] == [now.metrics["loss"] for now in plain[:5]]


def test_no_more_updates_are_inverted_than_requested() -> None:
    reported: list[module.Reconstructed] = []
    done = audit(settings(), range(1, 7), updates_max=3, on_reconstructed=reported.append)
    assert done.findings.updates == 3
    assert list(done.reconstructed) == reported


def test_a_second_inversion_of_a_client_starts_from_the_first() -> None:
    done = played(range(1, 7), updates_max=50, compensator={"settings": {**FEW, "warm_share": 0.34}})
    seen: set[int] = set()
    for one in done.reconstructed:
        assert len(one.disparity) == (1 if one.client_id in seen else 3)
        seen.add(one.client_id)
    assert len(seen) < len(done.reconstructed)


def test_examples_that_are_not_images_are_compared_by_their_numbers(tmp_path: Any) -> None:
    import numpy as np

    labels = np.arange(60) % 3
    inputs = np.sin(np.arange(120, dtype=np.float32)).reshape(60, 2) + labels[:, None].astype(np.float32)
    np.savez(tmp_path / "two.npz", x_train=inputs, y_train=labels, x_test=inputs, y_test=labels)
    done = played(data={"name": "npz", "path": str(tmp_path / "two.npz")}, partition={"name": "iid"})
    assert [measure.name for measure in done.measures] == ["PSNR"]
    assert any(note.startswith("SSIM is left out: examples of shape (2,)") for note in done.notes)


@pytest.mark.parametrize(
    ("rounds", "changes", "sentence"),
    [
        ([7], {}, "--at is 7, expected 1 to 6, which is rounds"),
        ([0], {}, "--at is 0, expected 1 to 6, which is rounds"),
        ([6], {"clients": 1}, "clients is 1, but reconstructions are held against the data of others"),
        ([1], {}, "no update of round 1 was stale, so there was nothing to invert; name later rounds"),
        ([3, 2], {"trigger": {"name": "sync"}}, "no update of rounds 2, 3 was stale, so there was nothing to invert"),
        ([6], {"compensator": {"name": "first-order"}}, "compensator.name is 'first-order', which inverts nothing"),
        ([6], {"compensator": {"settings": {"iterations": 0}}}, "setting 'iterations' of compensator"),
        (
            [6],
            {"compensator": {"settings": {"seconds_total": 5}}},
            "seconds_total is 5, but a simulation has no seconds to count",
        ),
        ([6], {"training": {"name": "moon"}, "policy": {"name": "moon"}}, "training.name is 'moon', whose updates"),
    ],
)
def test_an_impossible_audit_is_one_error_sentence(rounds: list[int], changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        played(rounds, **changes)


def test_too_little_memory_is_one_error_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr("unstale.compensators.inversion.engine.Engine._iterate", fail)
    with pytest.raises(UserError, match=r"memory is too small .* lower compensator\.settings\.images_max"):
        played()
