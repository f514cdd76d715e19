"""Measurements of single updates against hand-computed numbers, laws, and a client's own training."""

from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import one_hot

from unstale.compensators.inversion.reconstruction import Reconstruction
from unstale.config import Settings
from unstale.errors import UserError
from unstale.seeds import Stream, stream
from unstale.training.evaluate import evaluate
from unstale.training.examples import TensorExamples
from unstale.training.objectives import Classification
from unstale_papers.runners import measure
from unstale_papers.runners.inverting import curve, inverted
from unstale_papers.runners.loss_surface import PLACES, likeness
from unstale_papers.runners.stale_updates import Played, played
from unstale_papers.runners.warm_start import reached, replaced, saved

ROUNDS, RATE = 8, 0.2
PAPER = {"preset": "paper-sign-adam", "iterations": 12}
SCENARIO = """\
groups:
  - name: stale
    clients: {holding: 2, top: 2}
    stale_rounds: 3
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    file = tmp_path / "late.yaml"
    file.write_text(SCENARIO)
    return Settings(
        clients=8,
        rounds=ROUNDS,
        evaluate_every=1,
        model={"name": "logreg"},
        partition={"name": "dirichlet-client", "alpha": 0.5, "budget": 40},
        training={"epochs": 3, "batch_size": 600, "learning_rate": RATE},
        policy={"name": "direct"},
        compensator={"name": "gradient-inversion", "settings": PAPER},
        trigger={"name": "sync", "k": None},
        selector={"name": "round-robin", "size": 2},
        scenario={"name": str(file)},
        run={"durability": "off"},
        simulation={"backend": "loop"},
    )


def found(name: str, settings: Settings, **options: Any) -> Mapping[str, Any]:
    return measure(name, settings, options, on_progress=lambda _: None).found


def with_compensator(settings: Settings, name: str, **chosen: Any) -> Settings:
    compensator = settings.compensator.model_copy(update={"name": name, "settings": chosen})
    return settings.model_copy(update={"compensator": compensator})


def without_scenario(settings: Settings) -> Settings:
    return settings.model_copy(update={"scenario": settings.scenario.model_copy(update={"name": None})})


def own(run: Played, client_id: int) -> Reconstruction:
    inputs_nX, labels_n = run.context.trainer.tensors(client_id)
    return Reconstruction(inputs_rX=inputs_nX, labels_rC=100.0 * one_hot(labels_n, 10).float())


# --- the run ---


def test_versions_are_those_of_the_run_without_late_clients(settings: Settings) -> None:
    plain = with_compensator(without_scenario(settings), "none")
    record = measure("run", plain, {}, on_progress=lambda _: None)
    versions = played(settings, [0, ROUNDS]).versions
    assert sorted(versions) == [0, ROUNDS]
    assert versions[ROUNDS].digest == record.model_digest


def test_an_update_is_the_result_of_full_batch_steps(settings: Settings) -> None:
    """w <- w - rate * grad, three times, by autograd on the weights themselves."""
    run = played(settings, [ROUNDS])
    client = run.late_client()
    update = run.update(client, ROUNDS, task=0)
    inputs_nX, labels_n = run.context.trainer.tensors(client)
    start_d = run.versions[ROUNDS].model_d
    w_d = start_d.clone()
    for _ in range(3):
        w_d.requires_grad_()
        logits = inputs_nX.flatten(1) @ w_d[:640].view(10, 64).T + w_d[640:]
        (slope_d,) = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, labels_n), w_d)
        w_d = (w_d - RATE * slope_d).detach()
    torch.testing.assert_close(update.vector_d * update.local_rate, start_d - w_d, atol=1e-5, rtol=1e-4)
    assert (update.base_version, update.num_examples) == (ROUNDS, len(labels_n))


def test_the_late_client_with_the_most_examples_is_measured(settings: Settings) -> None:
    run = played(settings, [0])
    late = run.late()
    assert len(late) == 2
    chosen = run.late_client()
    assert chosen in late
    assert run.held(chosen) == max(map(run.held, late))


def test_a_run_without_late_clients_is_refused(settings: Settings) -> None:
    with pytest.raises(UserError, match="under which no client is late, expected a scenario with stale_rounds"):
        found("inversion cost", without_scenario(settings))


@pytest.mark.parametrize("name", ["inversion cost", "warm start", "nearest"])
def test_a_compensator_without_inversion_is_refused(settings: Settings, name: str) -> None:
    with pytest.raises(UserError, match=r"compensator\.name is 'none', which inverts nothing"):
        found(name, with_compensator(settings, "none"), changed=0.0)


# --- cost of inversion ---


def test_reconstructing_the_clients_own_examples_gives_zero_loss(settings: Settings) -> None:
    exact = with_compensator(settings, "gradient-inversion", **PAPER, images_share=1.0)
    run = played(exact, [ROUNDS])
    client = run.late_client()
    update = run.update(client, ROUNDS, task=0)
    inverting = run.inverting()
    inverting.inversions.remember(client, own(run, client))
    inverting.inversions.begin(update).iterations = 1
    _, losses = inverted(inverting, update, on_iteration=lambda _: None)
    whole = float((update.vector_d * update.local_rate).abs().sum())
    assert losses[0] < 1e-4 * whole
    assert losses[1] > losses[0]


def test_the_loss_is_recorded_before_each_iteration_and_after_the_last(settings: Settings) -> None:
    run = played(settings, [ROUNDS])
    update = run.update(run.late_client(), ROUNDS, task=0)
    result: list[float] = []
    one, losses = inverted(run.inverting(), update, on_iteration=result.append)
    assert len(losses) == 12 + 1
    assert result == pytest.approx([done / 12 for done in range(1, 13)])
    assert len(one.now) == ceil(update.num_examples / 2)
    assert losses[-1] < losses[0]


def test_the_cost_of_inversion_is_recorded_with_its_loss(settings: Settings) -> None:
    few = found("inversion cost", with_compensator(settings, "gradient-inversion", **PAPER, images_share=0.05))
    many = found("inversion cost", settings)
    assert few["inverted examples"] < many["inverted examples"]
    for one in (few, many):
        points = one["curves"]["inversion loss"]["points"]
        assert [iteration for iteration, _ in points] == list(range(13))
        assert points[-1][1] == one["inversion loss"]
        assert one["inversion seconds"] > 0


def test_a_long_curve_is_stored_as_few_points_with_both_ends() -> None:
    kept = curve([float(value) for value in range(15_001)])
    assert kept[0] == (0, 0.0)
    assert kept[-1] == (15_000, 15_000.0)
    assert 150 < len(kept) < 250
    assert curve([3.0, 2.0]) == [(0, 3.0), (1, 2.0)]


# --- errors by staleness ---


def test_the_error_of_a_stale_update_is_its_distance_from_the_true_one(settings: Settings) -> None:
    plain = with_compensator(settings, "none")
    result = found("staleness errors", plain, staleness=[0, 3, 60])
    run = played(plain, [ROUNDS - 3, ROUNDS])
    distances, angles = [], []
    for client in run.late():
        stale_d, true_d = (
            run.update(client, version, task=ROUNDS).vector_d.double() * RATE for version in (ROUNDS - 3, ROUNDS)
        )
        distances.append(float((stale_d - true_d).abs().sum()))
        angles.append(1 - float(stale_d @ true_d / (stale_d.norm() * true_d.norm())))
    assert result["L1 error at 3"] == pytest.approx(np.mean(distances))
    assert result["cosine error at 3"] == pytest.approx(np.mean(angles), abs=1e-9)
    assert result["L1 error at 0"] == 0
    assert result["cosine error at 0"] == pytest.approx(0, abs=1e-9)


def test_staleness_is_at_most_the_age_of_the_run(settings: Settings) -> None:
    result = found("staleness errors", with_compensator(settings, "none"), staleness=[0, 20, 60])
    assert [x for x, _ in result["curves"]["L1 error"]["points"]] == [0, ROUNDS]
    assert "L1 error at 60" not in result


def test_only_stale_updates_are_estimated(settings: Settings) -> None:
    errors = {
        name: found("staleness errors", with_compensator(settings, name, **chosen), staleness=[0, 4])
        for name, chosen in (("none", {}), ("first-order", {}), ("gradient-inversion", PAPER))
    }
    assert {one["L1 error at 0"] for one in errors.values()} == {0.0}
    assert len({one["L1 error at 4"] for one in errors.values()}) == 3


# --- the loss around the model ---


def test_the_surface_has_the_model_in_its_middle_and_the_trained_one_at_its_edge(settings: Settings) -> None:
    result = found("loss surface", settings, examples="own")
    run = played(settings, [ROUNDS])
    client = run.late_client()
    inputs_nX, labels_n = run.context.trainer.tensors(client)
    update = run.update(client, ROUNDS, task=ROUNDS)
    here_d = run.versions[ROUNDS].model_d

    def loss(model_d: torch.Tensor) -> float:
        return evaluate(run.context.model, model_d, TensorExamples(inputs_nX, labels_n), Classification()).metrics[
            "loss"
        ]

    middle = PLACES // 2
    rows = np.array(result["surface"])
    assert rows.shape == (PLACES, PLACES)
    assert rows[middle, middle] == pytest.approx(loss(here_d), rel=1e-5)
    assert rows[middle, -1] == pytest.approx(loss(here_d - update.vector_d * update.local_rate), rel=1e-5)
    assert rows[middle, -1] < rows[middle, middle] == result["loss at the model"]
    assert result["likeness of loss surface"] == pytest.approx(1.0)
    points = result["curves"]["loss along the update"]["points"]
    assert [points[0][0], points[-1][0]] == [-1.0, 1.0]
    assert [y for _, y in points] == rows[middle].tolist()


def test_different_examples_have_different_surfaces(settings: Settings) -> None:
    likenesses = {
        kind: found("loss surface", settings, examples=kind)["likeness of loss surface"]
        for kind in ("reconstructed", "noise")
    }
    assert len(set(likenesses.values())) == 2
    assert all(-1 <= one < 0.9999 for one in likenesses.values())


def test_similarity_is_a_correlation() -> None:
    surface_PP = torch.tensor([[1.0, 2.0], [4.0, 8.0]], dtype=torch.float64)
    assert likeness(surface_PP, 3 * surface_PP + 1) == pytest.approx(1.0)
    assert likeness(surface_PP, -surface_PP) == pytest.approx(-1.0)


def test_an_unknown_kind_of_examples_is_refused(settings: Settings) -> None:
    with pytest.raises(UserError, match="unknown kind of examples 'noises'; did you mean 'noise'"):
        found("loss surface", settings, examples="noises")


# --- warm starts ---


def test_the_saving_is_the_share_of_iterations_avoided() -> None:
    assert saved(cold=100, warm=57) == pytest.approx(0.43)
    assert saved(cold=100, warm=150) == pytest.approx(-0.5)
    assert saved(cold=0, warm=5) == 0


def test_a_loss_is_reached_at_its_first_crossing() -> None:
    assert reached([9.0, 4.0, 5.0, 3.0], 4.0) == 1
    assert reached([3.0, 9.0], 4.0) == 0
    assert reached([9.0, 8.0, 7.0], 4.0) == 2


def test_replaced_examples_are_new_and_of_the_same_class() -> None:
    labels_N = np.repeat(np.arange(4), 50)
    own_n = np.arange(0, 200, 5)
    changed_n = replaced(own_n, labels_N, 0.25, stream(1, Stream.INVERSION, 0))
    is_new = changed_n != own_n
    assert is_new.sum() == 10
    assert not set(changed_n[is_new]) & set(own_n)
    assert len(set(changed_n)) == len(own_n)
    assert labels_N[changed_n].tolist() == labels_N[own_n].tolist()


def test_examples_of_a_class_without_replacements_stay() -> None:
    labels_N = np.array([0, 0, 1, 1, 1])
    own_n = np.array([0, 1, 2])
    changed_n = replaced(own_n, labels_N, 1.0, stream(1, Stream.INVERSION, 0))
    assert changed_n.tolist()[:2] == [0, 1]
    assert changed_n[2] in (3, 4)


def test_a_warm_start_is_compared_with_a_start_from_noise(settings: Settings) -> None:
    result = found("warm start", settings, changed=0.5)
    warm, cold = (dict(result["curves"][f"{name} loss"]["points"]) for name in ("warm", "cold"))
    assert max(warm) == max(cold) == 12
    assert result["iterations saved"] == saved(result["cold iterations"], result["warm iterations"])
    assert cold[result["cold iterations"]] <= 1.05 * cold[12]


def test_an_inversion_starts_from_the_clients_last_result(settings: Settings) -> None:
    """With an unchanged update, its first loss equals the last one of the previous inversion."""
    exact = with_compensator(settings, "gradient-inversion", **PAPER, warm_share=1.0)
    run = played(exact, [ROUNDS])
    update = run.update(run.late_client(), ROUNDS, task=0)
    inverting = run.inverting()
    first, losses = inverted(inverting, update, on_iteration=lambda _: None)
    inverting.inversions.remember(update.client_id, first.now.on_host())
    again = replace(update, task_id=update.task_id + exact.clients)
    _, warm_losses = inverted(inverting, again, on_iteration=lambda _: None)
    assert warm_losses[0] == pytest.approx(losses[-1], rel=1e-5)


# --- real examples ---


def test_reconstructed_examples_are_compared_with_own_and_other_clients_examples(settings: Settings) -> None:
    result = found("nearest", settings)
    assert {"PSNR to own examples", "PSNR to others' examples", "SSIM to own examples"} <= set(result)
    assert all(0 < result[f"PSNR to {whose} examples"] < 100 for whose in ("own", "others'"))
    has_lpips = {"LPIPS to own examples", "LPIPS to others' examples"} <= set(result)
    assert has_lpips or "LPIPS is left out" in result["notes"][0]
