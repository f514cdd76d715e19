"""Errors of estimates: measuring, waiting and statistics."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from oracles import averages, inversion_oracle
from support.compensation import (
    context,
    inversion,
    numbers,
    received,
    reconstructed,
    reconstruction,
    smooth,
    stale_round,
    tensors_of,
)
from unstale.compensators import LocalSteps, MeasuredError, gradient_inversion
from unstale.compensators.errors import Matches, Recent, Waiting, measured, share_after_switch
from unstale.compensators.inversion.stopping import Choice

MODELS = {version: numbers(123, seed=version, scale=0.3) for version in range(12)}
"""By version, as `received` and `stale_round` have them."""


def test_an_error_by_hand():
    # u* = 0.1 (3, 4), estimate 0.1 (3, 0): L1 0.1 * 4, cosine 1 - 9 / (5 * 3).
    update = received(7, vector_d=torch.tensor([3.0, 4.0]), base_d=torch.zeros(2))
    error = measured(update, "first-order", torch.tensor([3.0, 0.0]), 5)
    assert (error.client_id, error.method, error.staleness) == (7, "first-order", 5)
    assert error.l1 == pytest.approx(0.4)
    assert error.cosine == pytest.approx(1 - 9 / 15)


@pytest.mark.parametrize(
    ("estimate", "cosine"), [([6.0, 8.0], 0.0), ([-3.0, -4.0], 2.0), ([0.0, 0.0], 1.0), ([4.0, -3.0], 1.0)]
)
def test_the_cosine_error_depends_on_the_direction_only(estimate, cosine):
    update = received(vector_d=torch.tensor([3.0, 4.0]), base_d=torch.zeros(2))
    assert measured(update, "none", torch.tensor(estimate), 1).cosine == pytest.approx(cosine, abs=1e-12)


@pytest.mark.skipif(not torch.backends.mps.is_available(), reason="there is no Apple GPU")
def test_an_error_on_a_device_without_float64_is_the_same():
    update, estimate_d = received(), numbers(123, seed=5)
    there = replace(update, vector_d=update.vector_d.to("mps"))
    assert measured(there, "none", estimate_d.to("mps"), 1) == measured(update, "none", estimate_d, 1)


def waiting(client_id: int = 0, version: int = 3) -> Waiting:
    return Waiting(
        version=version,
        stale=received(client_id),
        kept={5: reconstruction(), 6: reconstruction(seed=1)},
        choice=Choice(5, 0.5, 1.0),
        steps=2,
        rate=0.1,
    )


BYTES = 4 * (123 + 2 * 4 * (16 + 3))
"""Of one that waits; the base model, which all share, is to be added."""
BASE_BYTES = 4 * 123


def test_an_update_measures_the_newest_estimate_up_to_its_base():
    matches = Matches(100 * BYTES)
    for client_id, version in ((0, 3), (0, 5), (0, 7), (1, 6)):
        matches.add(waiting(client_id, version))

    def found(client_id: int, base_version: int) -> int | None:
        one = matches.of(received(client_id, base_version=base_version))
        return None if one is None else one.version

    assert [found(0, base) for base in (2, 3, 4, 5, 6, 7, 90)] == [None, 3, 3, 5, 5, 7, 7]
    assert found(1, 7) == 6
    assert found(2, 7) is None


def test_measurable_estimates_stop_waiting():
    matches = Matches(100 * BYTES)
    for client_id, version in ((0, 3), (0, 5), (0, 7), (1, 6)):
        matches.add(waiting(client_id, version))
    matches.settle([received(0, base_version=5), received(2, base_version=9)], 9)
    assert len(matches) == 2
    assert matches.size_bytes == 2 * BYTES + BASE_BYTES
    assert matches.of(received(0, base_version=6)) is None
    assert matches.of(received(0, base_version=7)) is not None
    assert matches.of(received(1, base_version=7)) is not None


def test_the_update_with_the_newest_base_settles_in_any_order():
    matches = Matches(100 * BYTES)
    matches.add(waiting(0, 4))
    matches.settle([received(0, base_version=4), received(0, base_version=3)], 5)
    assert len(matches) == 0


def test_without_free_memory_the_longest_waiting_stay():
    matches = Matches(2 * BYTES + BASE_BYTES)
    assert [matches.add(waiting(0, version)) for version in (3, 4, 5)] == [True, True, False]
    assert (len(matches), matches.size_bytes) == (2, 2 * BYTES + BASE_BYTES)
    assert matches.of(received(0, base_version=9)).version == 4
    matches.settle([received(0, base_version=3)], 6)
    assert matches.add(waiting(0, 6))


@pytest.mark.parametrize("bytes_max", [0, BYTES, BYTES + BASE_BYTES - 1])
def test_an_estimate_without_memory_does_not_wait(bytes_max):
    matches = Matches(bytes_max)
    assert not matches.add(waiting())
    assert (len(matches), matches.size_bytes) == (0, 0)


def test_a_base_model_of_several_is_stored_once_also_in_the_state():
    matches, other = Matches(100 * BYTES), Matches(100 * BYTES)
    for client_id in range(3):
        matches.add(waiting(client_id))
    other.load_state_dict(matches.state_dict())
    for one in (matches, other):
        bases = {id(one.of(received(client_id, base_version=3)).stale.base_d) for client_id in range(3)}
        assert len(bases) == 1
        assert one.size_bytes == 3 * BYTES + BASE_BYTES
    assert len(list(tensors_of(matches.state_dict()))) == 3 * 5 + 1


def test_a_waiting_estimate_shares_no_memory_with_the_update():
    matches, one = Matches(100 * BYTES), waiting()
    matches.add(one)
    one.stale.vector_d.zero_()
    one.stale.base_d.zero_()
    kept = matches.of(received(0, base_version=3)).stale
    assert torch.equal(kept.vector_d, received(0).vector_d)
    assert torch.equal(kept.base_d, received(0).base_d)


def test_a_client_silent_for_five_hundred_rounds_is_no_longer_waited_for():
    matches = Matches(100 * BYTES)
    matches.add(waiting(0, 3))
    matches.settle([], 503)
    assert len(matches) == 1
    matches.settle([], 504)
    assert (len(matches), matches.size_bytes) == (0, 0)


def test_waiting_clients_are_in_the_state():
    matches, other = Matches(100 * BYTES), Matches(100 * BYTES)
    matches.add(waiting(0, 3))
    matches.add(waiting(1, 4))
    other.add(waiting(5, 5))
    other.load_state_dict(matches.state_dict())
    assert (len(other), other.size_bytes) == (2, 2 * BYTES + BASE_BYTES)
    found = other.of(received(0, base_version=3))
    assert found is not None
    assert torch.equal(found.stale.vector_d, received(0).vector_d)
    assert torch.equal(found.stale.base_d, received(0).base_d)
    assert (found.version, found.steps, found.rate, found.stale.staleness) == (3, 2, 0.1, 3)
    assert found.choice == Choice(5, 0.5, 1.0)
    assert torch.equal(found.kept[6].inputs_rX, reconstruction(seed=1).inputs_rX)


def error(method: str, l1: float, cosine: float = 0.0) -> MeasuredError:
    return MeasuredError(client_id=0, method=method, l1=l1, cosine=cosine, staleness=1)


def test_means_are_over_the_newest_of_each_method():
    recent = Recent(2)
    assert recent.mean("none") is None
    for l1, cosine in ((100.0, 1.0), (1.0, 0.5), (3.0, 0.1)):
        recent.add(error("none", l1, cosine))
    recent.add(error("first-order", 9.0))
    assert recent.mean("none") == pytest.approx((2.0, 0.3))
    assert recent.mean("first-order") is None


def test_restored_recent_errors_still_leave_the_window():
    recent, other = Recent(2), Recent(2)
    for l1 in (1.0, 2.0):
        recent.add(error("none", l1))
    other.add(error("first-order", 5.0))
    other.load_state_dict(recent.state_dict())
    other.add(error("none", 6.0))
    assert other.mean("none")[0] == 4.0
    assert recent.mean("none")[0] == 1.5
    assert other.mean("first-order") is None


@pytest.mark.parametrize(("smooth_rounds", "shares"), [(4, [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]), (0, [0.0] * 6)])
def test_the_share_of_the_estimate_falls_from_the_switch_on(smooth_rounds, shares):
    assert share_after_switch(10**6, None, smooth_rounds) == 1.0
    assert [share_after_switch(version, 8, smooth_rounds) for version in range(8, 14)] == shares


# Information from later updates.


def estimated(subject) -> tuple[dict, Tensor]:
    """A round at version 3, with a stale update of client 0 from version 0: its outcome."""
    round_ = stale_round(received(0), version=3)
    made = subject.make(round_)
    outcome = subject.take(round_, made)
    assert list(outcome.errors) == []
    return made["estimates"][0], outcome.vectors[0]


def errors_of(subject, **later):
    """The errors that a later update of client 0 measures."""
    update = received(0, **later)
    round_ = stale_round(update, version=update.base_version + update.staleness)
    outcome = subject.take(round_, subject.make(round_))
    return update, {one.method: one for one in outcome.errors}


def l1(update, estimate_d: Tensor) -> float:
    return update.local_rate * float((estimate_d - update.vector_d).abs().sum())


@pytest.mark.parametrize("staleness", [0, 2])
def test_the_next_update_measures_each_method(staleness):
    subject = inversion()
    _, estimate_d = estimated(subject)
    true, errors = errors_of(subject, base_version=3, staleness=staleness)
    stale = received(0)
    u_d = averages.first_order(
        0.1 * stale.vector_d.double().numpy(), MODELS[3].double().numpy(), MODELS[0].double().numpy(), 4.0
    )
    assert list(errors) == ["none", "first-order", "gradient-inversion"]
    assert errors["none"].l1 == pytest.approx(l1(true, stale.vector_d), rel=1e-5)
    assert errors["first-order"].l1 == pytest.approx(l1(true, torch.from_numpy(u_d) / 0.1), rel=1e-5)
    assert errors["gradient-inversion"].l1 == pytest.approx(l1(true, estimate_d), rel=1e-5)
    cosine = torch.cosine_similarity(estimate_d, true.vector_d, dim=0)
    assert errors["gradient-inversion"].cosine == pytest.approx(1 - float(cosine), abs=1e-5)
    assert {one.staleness for one in errors.values()} == {3}


@pytest.mark.parametrize("residual", [0.0, 0.5])
def test_an_update_from_a_newer_model_measures_each_method(residual):
    steps = LocalSteps(steps=2, momentum=0.5)
    subject = inversion(where=context(steps=steps), residual=residual)
    one, _ = estimated(subject)
    true, errors = errors_of(subject, base_version=5, staleness=0)

    x, l = reconstructed(one)["inputs"], reconstructed(one)["labels"]  # noqa: E741
    local = inversion_oracle.Local(steps=2, rate=0.1, momentum=0.5)

    def lu(version: int) -> Tensor:
        return inversion_oracle.local_update(smooth(), MODELS[version], x, l, local).detach() / 0.1

    stale = received(0)
    inverted_d = lu(5) + residual * (stale.vector_d - lu(0))
    u_d = averages.first_order(
        0.1 * stale.vector_d.double().numpy(), MODELS[5].double().numpy(), MODELS[0].double().numpy(), 4.0
    )
    assert errors["gradient-inversion"].l1 == pytest.approx(l1(true, inverted_d), rel=1e-4)
    assert errors["first-order"].l1 == pytest.approx(l1(true, torch.from_numpy(u_d) / 0.1), rel=1e-5)
    assert errors["none"].l1 == pytest.approx(l1(true, stale.vector_d), rel=1e-5)
    assert {one.staleness for one in errors.values()} == {5}


@pytest.mark.parametrize("later", [{"base_version": 2, "staleness": 2}, {"base_version": 1}], ids=str)
def test_an_update_from_an_older_model_measures_nothing(later):
    subject = inversion()
    estimated(subject)
    assert errors_of(subject, **later)[1] == {}


def test_an_estimate_is_measured_once():
    subject = inversion()
    estimated(subject)
    assert errors_of(subject, base_version=3, staleness=0)[1] != {}
    assert errors_of(subject, base_version=4, staleness=0)[1] == {}


def test_two_updates_of_a_round_tell_once():
    subject = inversion()
    estimated(subject)
    later = [received(0, base_version=3, staleness=2), received(0, base_version=4, staleness=1)]
    errors = subject.make(stale_round(*later, version=5))["errors"]
    assert [one[1] for one in errors] == ["none", "first-order", "gradient-inversion"]


def test_with_memory_for_some_estimates_the_rest_is_noted():
    # Every client is six rounds late, so that sixty wait; a third of that fits.
    subject = inversion(matches_bytes_max=20 * (BYTES + BASE_BYTES), warm_start=False, iterations=2)
    errors, notes = 0, []
    for version in range(6, 20):
        updates = [received(client_id, base_version=version - 6, staleness=6) for client_id in range(10)]
        round_ = stale_round(*updates, version=version)
        outcome = subject.take(round_, subject.make(round_))
        errors += len(outcome.errors)
        notes += outcome.notes
    assert errors >= 3 * 20
    assert set(notes) == {
        "there is no memory for more estimates that wait for their client's next update, so not all are compared "
        "with it; raise compensator.settings.matches_bytes_max to learn from all"
    }


@pytest.mark.parametrize("bad", ["none", "first-order", "gradient-inversion"])
@pytest.mark.parametrize("number", [torch.inf, torch.nan])
def test_if_one_error_is_not_finite_none_is_reported(monkeypatch, bad, number):
    def not_finite(update, method, estimate_d, staleness):
        one = measured(update, method, estimate_d, staleness)
        return replace(one, l1=number) if method == bad else one

    subject = inversion()
    estimated(subject)
    monkeypatch.setattr(gradient_inversion, "measured", not_finite)
    assert errors_of(subject, base_version=3, staleness=0)[1] == {}
    oracle = inversion(where=context(fresh_update=lambda update, stale: numbers(123, seed=7)), switch="oracle")
    assert oracle.make(stale_round(received(0)))["errors"] == []


def test_an_update_without_a_base_measures_nothing():
    subject = inversion()
    estimated(subject)
    assert errors_of(subject, base_version=4, staleness=1, is_kept=False)[1] == {}


def test_errors_are_reported_with_switch_never():
    subject = inversion(switch="never", window=1, margin=1e-6, adapt=False)
    estimated(subject)
    assert errors_of(subject, base_version=3, staleness=0)[1] != {}
    assert subject.state_dict()["off_at"] is None


def test_a_round_computed_again_has_the_recorded_errors():
    subject, again = inversion(), inversion()
    round_ = stale_round(received(0), version=3)
    made = subject.make(round_)
    later = stale_round(received(0, base_version=3, staleness=1), version=4)
    for one in (subject, again):
        one.take(round_, made)
    recorded = subject.make(later)
    assert subject.take(later, recorded).errors == again.take(later, recorded).errors != []


# Information in a simulation.


def test_true_errors_are_measured_at_once_in_a_simulation():
    true_d = numbers(123, seed=77, scale=0.3)
    asked = []

    def fresh_update(update, stale):
        asked.append((update.client_id, stale.version))
        return true_d

    subject = inversion(where=context(fresh_update=fresh_update), switch="oracle")
    stale, fresh = received(0), received(1, base_version=3, staleness=0)
    round_ = stale_round(stale, fresh, version=3)
    outcome = subject.take(round_, subject.make(round_))
    assert asked == [(0, 3)]
    errors = {one.method: one for one in outcome.errors}
    true = replace(stale, vector_d=true_d)
    drift_d = MODELS[3] - MODELS[0]
    first_order_d = stale.vector_d + 4 * 0.1 * stale.vector_d**2 * drift_d
    assert errors["none"].l1 == pytest.approx(l1(true, stale.vector_d), rel=1e-5)
    assert errors["first-order"].l1 == pytest.approx(l1(true, first_order_d), rel=1e-5)
    assert errors["gradient-inversion"].l1 == pytest.approx(l1(true, outcome.vectors[0]), rel=1e-5)
    assert {(one.client_id, one.staleness) for one in errors.values()} == {(0, 3)}
