"""Compensators in the learner: the input of the policy, unchanged updates, and the golden vector of first order."""

from typing import Any

import pytest
import torch
from torch import Tensor

from support.compensation import certain, context, images, inversion, made, network, numbers, received, stale_round
from support.updates import GOLDEN_MODEL
from unstale.compensators import Compensator, LocalSteps
from unstale.compensators.inversion.reconstruction import Reconstruction
from unstale.learner.learner import Learner
from unstale.learner.updates import RoundUpdate
from unstale.policies import Policy, PolicyContext, Step, UpdateBatch, create

RATE = 0.1


class Recorder(Policy):
    """Keeps the batches that it is shown and steps along their mean. Wants all that a batch may have."""

    source = "this test"
    needs_base_models = True

    def __init__(self, dimension: int) -> None:
        where = PolicyContext(dimension=dimension, clients=10, device=torch.device("cpu"))
        super().__init__(Recorder.Settings(), where)
        self.batches: list[UpdateBatch] = []

    def step(self, batch: UpdateBatch) -> Step:
        self.batches.append(batch)
        return self.weighted(batch, torch.full((len(batch),), 1 / max(1, len(batch)), dtype=torch.float64))


class WithExtra(Recorder):
    """Sends a second vector along."""

    sends_extra = True

    @property
    def extra_d(self) -> Tensor:
        return torch.zeros(self.dimension)


def learner(
    compensator: Compensator[Any] | None, policy: Policy | None = None, *, buffers_b: Tensor | None = None
) -> Learner:
    return Learner(
        numbers(123, scale=0.3),
        policy or Recorder(123),
        learning_rate=lambda counted: RATE,
        buffers_b=buffers_b,
        keep_versions=True,
        compensator=compensator,
    )


def update(client_id: int, *, base_version: int, staleness: int) -> RoundUpdate:
    return RoundUpdate(
        client_id=client_id,
        task_id=10 * base_version + client_id + 1,
        base_version=base_version,
        staleness=staleness,
        num_examples=8,
        batch_examples=8,
        loss=1.0,
        local_rate=RATE,
    )


def two_rounds(subject: Learner, *, extra: int = 0):
    """A fresh round, then one of a stale update of client 0 and a fresh one of client 1; its rows and its result."""
    first = numbers(1, 123 + extra, seed=50, scale=0.3)
    subject.apply_round(first, [update(1, base_version=0, staleness=0)])
    rows = numbers(2, 123 + extra, seed=51, scale=0.3)
    updates = [update(0, base_version=0, staleness=1), update(1, base_version=1, staleness=0)]
    return rows, subject.apply_round(rows, updates)


COMPENSATORS = {
    "first-order": lambda: made("first-order"),
    "first-order adaptive": lambda: made("first-order", strength="adaptive"),
    "gradient-inversion": lambda: inversion(),
    "auto": lambda: inversion("auto"),
    "oracle": lambda: made("oracle", context(fresh_update=lambda update, stale: numbers(123, seed=9))),
}


# The policy.


@pytest.mark.parametrize("name", COMPENSATORS)
def test_the_policy_sees_the_estimate_in_place_of_the_stale_update(name):
    policy = Recorder(123)
    rows, result = two_rounds(learner(COMPENSATORS[name](), policy))
    seen = policy.batches[-1]
    assert not torch.equal(seen.matrix_Kd[0], rows[0])
    assert torch.equal(seen.matrix_Kd[1], rows[1])
    assert result.staleness == (1, 0)  # unchanged
    assert result.compensation is not None
    assert [compensated.method for compensated in result.compensation.updates][1] == "none"


@pytest.mark.parametrize(
    ("compensator", "staleness"),
    [
        (lambda: made("first-order"), [1, 0]),
        (lambda: made("first-order", counts_as_fresh=True), [0, 0]),
        (lambda: inversion(), [0, 0]),
        (lambda: inversion(counts_as_fresh=False), [1, 0]),
        (COMPENSATORS["oracle"], [0, 0]),
        (
            lambda: made(
                "oracle", context(fresh_update=lambda update, stale: numbers(123, seed=9)), counts_as_fresh=False
            ),
            [1, 0],
        ),
    ],
    ids=[*("first-order", "first-order as fresh", "inversion", "inversion as stale"), *("oracle", "oracle as stale")],
)
def test_an_update_that_counts_as_fresh_has_staleness_0_and_the_current_base(compensator, staleness):
    policy = Recorder(123)
    subject = learner(compensator(), policy)
    two_rounds(subject)
    seen = policy.batches[-1]
    assert seen.staleness_K.tolist() == staleness
    assert seen.base_models is not None
    assert [torch.equal(base_d, seen.model_d) for base_d in seen.base_models] == [True, True]


def test_an_unchanged_update_keeps_its_staleness():
    # It did not fit the budget, and `auto` knows that first order is worse than nothing.
    compensator = inversion("auto", window=1, iterations_per_round=1)
    compensator.recent.load_state_dict({"none": [[1.0, 0.5]], "first-order": [[2.0, 0.5]]})
    policy = Recorder(123)
    subject = learner(compensator, policy)
    rows, _ = two_rounds(subject)
    seen = policy.batches[-1]
    assert torch.equal(seen.matrix_Kd, rows)
    assert seen.staleness_K.tolist() == [1, 0]
    assert torch.equal(seen.base_models[0], subject.base(0).model_d)


def test_an_update_compensated_to_first_order_does_not_count_as_inverted():
    policy = Recorder(123)
    _, result = two_rounds(learner(inversion(iterations_per_round=1), policy))
    assert result.compensation.updates[0].method == "first-order"
    assert policy.batches[-1].staleness_K.tolist() == [1, 0]


def test_a_policy_that_weighs_by_staleness_takes_an_estimate_for_fresh():
    # DynSGD: 1 / (s + 1), normalised.
    for compensator, weights in ((made("first-order"), (1 / 3, 2 / 3)), (inversion(), (1 / 2, 1 / 2))):
        policy = create("dynsgd", dimension=123, clients=10, device="cpu")
        _, result = two_rounds(learner(compensator, policy))
        assert result.weights_K == pytest.approx(weights)


# Unchanged parts.


@pytest.mark.parametrize("name", COMPENSATORS)
def test_rows_are_not_written_to(name):
    subject = learner(COMPENSATORS[name]())
    subject.apply_round(numbers(1, 123, scale=0.3), [update(1, base_version=0, staleness=0)])
    rows = numbers(1, 123, seed=51, scale=0.3)
    before = rows.clone()
    subject.apply_round(rows, [update(0, base_version=0, staleness=1)])
    assert torch.equal(rows, before)


@pytest.mark.parametrize("name", COMPENSATORS)
def test_buffers_and_the_second_vector_of_a_row_stay(name):
    def played(compensator: Compensator[Any] | None):
        policy = WithExtra(123)
        subject = learner(compensator, policy, buffers_b=torch.tensor([1.0, 2.0]))
        two_rounds(subject, extra=2 + 123)
        return subject.sent.buffers_b, policy.batches[-1].extra_Kd

    (buffers_b, extra_Kd), (plain_b, plain_Kd) = played(COMPENSATORS[name]()), played(None)
    assert torch.equal(buffers_b, plain_b)
    assert torch.equal(extra_Kd, plain_Kd)


@pytest.mark.parametrize("name", COMPENSATORS)
@pytest.mark.parametrize("policy", ["direct", "weighted", "fedasync", "dynsgd"])
def test_a_run_without_stale_updates_is_bit_identical_without_a_compensator(policy, name):
    def played(compensator: Compensator[Any] | None) -> Tensor:
        made_ = create(policy, dimension=123, clients=10, device="cpu")
        subject = learner(compensator, made_)
        for version in range(4):
            rows = numbers(3, 123, seed=version, scale=0.3)
            updates = [update(client_id, base_version=version, staleness=0) for client_id in range(3)]
            subject.apply_round(rows, updates)
        return subject.model_d

    assert torch.equal(played(COMPENSATORS[name]()), played(None))


def test_without_a_compensator_there_is_no_outcome():
    subject = learner(None)
    _, result = two_rounds(subject)
    assert result.compensation is None
    assert not subject.prefetches
    assert not subject.work()


# Golden: docs/methods/README.md#golden-vectors.


@pytest.mark.parametrize(
    ("policy", "compensator", "result"),
    [
        ("direct", "first-order", (-0.004, 0.032, 0.3, 0.05)),
        ("direct", "none", (0.0, 0.0, 0.3, 0.05)),  # w - u
    ],
)
def test_the_golden_vector_of_first_order(policy, compensator, result):
    # u = (0.1, -0.2, 0, -0.05) from w_b = 0, at w = GOLDEN_MODEL: the round before leads there.
    subject = Learner(
        torch.zeros(4),
        create(policy, dimension=4, clients=5, device="cpu"),
        learning_rate=lambda counted: RATE,
        keep_versions=True,
        compensator=None if compensator == "none" else made(compensator),
    )
    subject.apply_round(-GOLDEN_MODEL[None] / RATE, [update(0, base_version=0, staleness=0)])
    u_d = torch.tensor([0.1, -0.2, 0.0, -0.05])
    subject.apply_round(u_d[None] / RATE, [update(1, base_version=0, staleness=1)])
    assert subject.model_d.tolist() == pytest.approx(result, abs=1e-6)


# Before a round, and again.


def test_early_work_gives_the_same_result():
    early, late = learner(inversion()), learner(inversion())
    for subject in (early, late):
        subject.apply_round(numbers(1, 123, scale=0.3), [update(1, base_version=0, staleness=0)])
    rows = numbers(1, 123, seed=51, scale=0.3)
    first = update(0, base_version=0, staleness=1)
    assert early.prefetches
    early.precompute(rows[0], first)
    done = sum(early.work() for _ in range(20))
    assert done == 6
    results = [subject.apply_round(rows, [first]) for subject in (early, late)]
    assert torch.equal(early.model_d, late.model_d)
    assert [result.compensation.updates[0].iterations for result in results] == [6, 6]


def test_a_round_with_its_recorded_result_is_the_same():
    subject, again = learner(inversion()), learner(inversion())
    _, result = two_rounds(subject)
    assert result.compensation.made is not None
    again.apply_round(numbers(1, 123, seed=50, scale=0.3), [update(1, base_version=0, staleness=0)], made=None)
    rows = numbers(2, 123, seed=51, scale=0.3)
    updates = [update(0, base_version=0, staleness=1), update(1, base_version=1, staleness=0)]
    same = again.apply_round(rows, updates, result.compensation.made)
    assert same.sent.digest == result.sent.digest
    assert same.compensation.updates == result.compensation.updates


def test_a_cheap_result_is_not_recorded():
    _, result = two_rounds(learner(made("first-order")))
    assert result.compensation.made is None


def test_an_update_whose_base_was_deleted_is_applied_unchanged():
    policy = create("direct", dimension=123, clients=10, device="cpu")
    subject, plain = learner(inversion(), policy), learner(None, create("direct", dimension=123, clients=10))
    rows, results = numbers(1, 123, seed=51, scale=0.3), []
    for one in (subject, plain):
        one.apply_round(numbers(1, 123, scale=0.3), [update(1, base_version=0, staleness=0)])
        one.forget(0)
        results.append(one.apply_round(rows, [update(0, base_version=0, staleness=1)]))
    assert torch.equal(subject.model_d, plain.model_d)
    assert [compensated.method for compensated in results[0].compensation.updates] == ["none"]
    assert results[0].compensation.fallbacks == {"no-base": 1}


@pytest.mark.parametrize("name", COMPENSATORS)
def test_a_learner_continues_from_its_state_to_the_bit(name):
    def rounds(subject: Learner, *versions: int) -> str:
        for version in versions:
            stale = update(0, base_version=max(0, version - 2), staleness=min(2, version))
            fresh = update(1, base_version=version, staleness=0)
            subject.apply_round(numbers(2, 123, seed=version, scale=0.3), [stale, fresh])
        return subject.sent.digest

    whole = learner(COMPENSATORS[name](), create("direct", dimension=123, clients=10))
    rounds(whole, 0, 1, 2)
    resumed = learner(COMPENSATORS[name](), create("direct", dimension=123, clients=10))
    resumed.load_state_dict(whole.state_dict())
    assert rounds(resumed, 3, 4) == rounds(whole, 3, 4)


def test_a_stale_update_of_a_rare_class_is_estimated_better_than_it_was():
    # Client 0 alone holds class 1, and the model has learned to expect class 0: what the whole is for.
    steps = LocalSteps(steps=5)
    net, rate = network(), 0.1
    compensator = inversion(where=context(net, steps=steps), iterations=60, images_share=1.0, images_max=8)
    engine = compensator.inversions.engine

    def trained(model_d: Tensor, label: int, seed: int) -> Tensor:
        labels_n = torch.full((8,), label)
        data = Reconstruction(inputs_rX=images(8, seed=seed), labels_rC=certain(labels_n))
        return engine.local_update(data, net.parts(model_d), 5, rate)

    base_d = numbers(123, scale=0.3)
    model_d = base_d
    for _ in range(6):
        model_d = model_d - trained(model_d, 0, seed=1)
    stale_d, true_d = trained(base_d, 1, seed=2), trained(model_d, 1, seed=2)
    update = received(vector_d=stale_d / rate, base_d=base_d, local_rate=rate)
    round_ = stale_round(update, model_d=model_d)
    estimate_d = rate * compensator.take(round_, compensator.make(round_)).vectors[0]
    first_order_d = rate * compensator.first_order.estimate(update, model_d)
    before, after, bent = (float((one_d - true_d).abs().sum()) for one_d in (stale_d, estimate_d, first_order_d))
    assert after < 0.6 * before
    assert after < 0.6 * bent
