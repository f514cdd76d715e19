from itertools import permutations

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from support.parts_of_runs import client_task, fedprox, gradient, moon, scaffold, sgd
from unstale.errors import UserError
from unstale.flat import FlatModel
from unstale.seeds import Stream, stream
from unstale.training import models
from unstale.training.client_state import PENDING_MAX
from unstale.training.datasets import OwnData, load
from unstale.training.evaluate import evaluate
from unstale.training.examples import TensorExamples
from unstale.training.local import LocalTask
from unstale.training.objectives import Classification
from unstale.training.objectives.regression import Regression
from unstale.training.trainer import Trainer
from unstale.training.workload import TrainingFailed


@pytest.fixture(scope="module")
def digits():
    return load("digits")


def shares_of(digits) -> list:
    """Five clients, each with the examples of two or three classes."""
    return np.array_split(np.argsort(digits.train.labels_N.numpy(), kind="stable"), 5)


def a_trainer(digits, training, test_partitions=None) -> tuple[Trainer, torch.Tensor]:
    model = FlatModel(models.build("digits_cnn", digits.input_shape, digits.classes, seed=0))
    trainer = Trainer(digits, shares_of(digits), model, training, seed=0, test_partitions=test_partitions)
    return trainer, model.parameters_d.clone()


TRAININGS = [gradient(), sgd(steps=3, momentum=0.9), fedprox(steps=3, mu=0.1), moon(steps=3), scaffold(steps=3)]


@pytest.mark.parametrize("training", TRAININGS, ids=lambda training: training.name)
def test_an_update_is_the_same_bits_whichever_clients_were_trained_before(digits, training):
    tasks = [(0, 0), (3, 0), (3, 1)]
    alone = {}
    for client_id, number in tasks:
        trainer, base_d = a_trainer(digits, training)
        alone[client_id, number] = trainer.train(client_task(client_id, number, base_d, 0.1, extra_d=0.1 * base_d))
    for order in permutations(tasks):
        trainer, base_d = a_trainer(digits, training)
        for client_id, number in order:
            update = trainer.train(client_task(client_id, number, base_d, 0.1, extra_d=0.1 * base_d))
            assert torch.equal(update.vector_d, alone[client_id, number].vector_d)
            assert update.loss == alone[client_id, number].loss
    assert len({update.loss for update in alone.values()}) == len(tasks)


def test_a_client_trains_on_its_own_share_with_its_own_stream(digits):
    trainer, base_d = a_trainer(digits, sgd(steps=2))
    own_n = shares_of(digits)[2]
    update = trainer.train(client_task(2, 7, base_d, 0.1))
    model = FlatModel(models.build("digits_cnn", digits.input_shape, digits.classes, seed=0))
    labels_n = digits.train.labels_N[own_n]
    batches = sgd(steps=2).batches(labels_n, stream(0, Stream.BATCHES, 2, 7))
    task = LocalTask(base_d=base_d, learning_rate=0.1, batches=batches, seed=0)
    expected = sgd(steps=2).compute(
        model, TensorExamples(digits.train_examples(own_n), labels_n), Classification(), task
    )
    assert update.num_examples == len(own_n)
    assert torch.equal(update.vector_d, expected.vector_d)


def test_the_digits_model_learns_the_digits_when_all_data_lie_in_one_place(digits):
    model = FlatModel(models.build("digits_cnn", digits.input_shape, digits.classes, seed=0))
    shares = [np.arange(len(digits.train.labels_N))]
    base_d = model.parameters_d.clone()
    update = Trainer(digits, shares, model, sgd(epochs=15, momentum=0.9), seed=0).train(client_task(0, 0, base_d, 0.02))
    model_d = base_d - update.vector_d
    result = evaluate(model, model_d, TensorExamples(digits.test_examples(), digits.test.labels_N), Classification())
    assert result.metrics["accuracy"] >= 0.97


def test_a_client_keeps_its_state_from_the_verdict_on(digits):
    trainer, base_d = a_trainer(digits, moon(steps=2))
    first = trainer.train(client_task(1, 0, base_d, 0.1))
    again = trainer.train(client_task(1, 0, base_d, 0.1))
    assert torch.equal(again.vector_d, first.vector_d)  # not yet accepted: a first participation still
    assert trainer.kept(1) == {}
    trainer.keep(1, 0)
    assert list(trainer.kept(1)) == ["trained_d"]
    assert torch.equal(trainer.kept(1)["trained_d"], first.state["trained_d"])

    other, _ = a_trainer(digits, sgd(steps=2))
    moved_d = base_d - 0.5 * first.vector_d
    plain = {client: other.train(client_task(client, 1, moved_d, 0.1)).vector_d for client in (1, 2)}
    assert not torch.equal(trainer.train(client_task(1, 1, moved_d, 0.1)).vector_d, plain[1])
    assert torch.equal(trainer.train(client_task(2, 1, moved_d, 0.1)).vector_d, plain[2])


def test_the_state_of_a_rejected_update_is_forgotten(digits):
    trainer, base_d = a_trainer(digits, moon(steps=2))
    trainer.train(client_task(1, 0, base_d, 0.1))
    trainer.drop(1, 0)
    trainer.keep(1, 0)
    assert trainer.kept(1) == {}


def test_a_verdict_counts_once_and_of_an_unknown_task_not_at_all(digits):
    trainer, base_d = a_trainer(digits, scaffold(steps=2))
    update = trainer.train(client_task(1, 0, base_d, 0.1, extra_d=torch.zeros_like(base_d)))
    for number in (0, 0, 5):
        trainer.keep(1, number)
    trainer.drop(3, 0)
    assert torch.equal(trainer.kept(1)["control_d"], update.extra_d)


def test_of_a_client_only_a_few_open_updates_are_remembered(digits):
    trainer, base_d = a_trainer(digits, moon(steps=1))
    updates = [trainer.train(client_task(1, number, base_d, 0.1)) for number in range(PENDING_MAX + 1)]
    trainer.keep(1, 0)
    assert trainer.kept(1) == {}
    trainer.keep(1, 1)
    assert torch.equal(trainer.kept(1)["trained_d"], updates[1].state["trained_d"])


@pytest.mark.parametrize("training", [moon(steps=2), scaffold(steps=2)], ids=lambda one: one.name)
def test_a_trainer_continues_bit_identically_from_the_state_of_another(digits, training):
    trainer, base_d = a_trainer(digits, training)
    for client_id in (4, 0):
        trainer.train(client_task(client_id, 0, base_d, 0.1, extra_d=0.1 * base_d))
        trainer.keep(client_id, 0)
    other, _ = a_trainer(digits, training)
    other.train(client_task(4, 9, base_d, 0.1, extra_d=base_d))
    other.drop(4, 9)
    for client_id in (4, 0):
        other.restore(client_id, trainer.kept(client_id), {})
    for client_id in (0, 4):
        ours, theirs = (
            one.train(client_task(client_id, 1, base_d + 0.01, 0.1, extra_d=0.2 * base_d)) for one in (trainer, other)
        )
        assert torch.equal(ours.vector_d, theirs.vector_d)


def test_dropout_differs_from_task_to_task_and_from_client_to_client_and_is_repeated_by_none(digits):
    model = FlatModel(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(), torch.nn.Linear(64, 10)))
    base_d = model.parameters_d.clone()
    one = np.array([0])  # so that no batch differs
    trainer = Trainer(digits, [one, one], model, gradient(), seed=0)
    tasks = [(0, 0), (0, 1), (1, 0)]
    first = [trainer.train(client_task(*task, base_d, 0.1)).loss for task in tasks]
    again = [trainer.train(client_task(*task, base_d, 0.1)).loss for task in reversed(tasks)]
    assert first == again[::-1]
    assert len(set(first)) == len(tasks)


def test_a_client_evaluates_a_model_on_its_own_test_examples(digits):
    own_m = np.array([3, 5, 8, 13])
    trainer, base_d = a_trainer(digits, sgd(steps=1), test_partitions=[np.array([], dtype=np.int64), own_m])
    before = trainer.train(client_task(1, 0, base_d, 0.1)).vector_d
    found = trainer.evaluate(1, base_d)
    model = FlatModel(models.build("digits_cnn", digits.input_shape, digits.classes, seed=0))
    assert found == evaluate(
        model, base_d, TensorExamples(digits.test_examples(own_m), digits.test.labels_N[own_m]), Classification()
    )
    assert found.num_examples == 4
    assert trainer.evaluate(0, base_d) is None
    assert torch.equal(trainer.train(client_task(1, 0, base_d, 0.1)).vector_d, before)


def test_without_own_test_sets_no_client_evaluates(digits):
    trainer, base_d = a_trainer(digits, sgd(steps=1))
    assert trainer.evaluate(1, base_d) is None


class Damaged(Dataset):
    """Examples of which number 2 cannot be read."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index == 2:
            raise ValueError("no such row")
        return torch.ones(1), torch.ones(1)


def test_a_task_fails_whose_examples_cannot_be_read_and_others_do_not(caplog):
    data = OwnData("damaged", Damaged(), Damaged())
    model = FlatModel(torch.nn.Linear(1, 1))
    own = [np.array([0, 1]), np.array([2, 3])]
    trainer = Trainer(data, own, model, sgd(steps=1), seed=0, objective=Regression(), test_partitions=own)
    base_d = model.parameters_d.clone()
    sentence = "example 2 of the data set cannot be read (ValueError: no such row)"
    with pytest.raises(TrainingFailed) as caught:
        trainer.train(client_task(1, 0, base_d, 0.1))
    assert str(caught.value) == sentence
    assert caplog.records[0].exc_info is not None  # the traceback is in the log
    failed, made = trainer.train_each([client_task(1, 0, base_d, 0.1), client_task(0, 0, base_d, 0.1)])
    assert isinstance(failed, TrainingFailed) and str(failed) == sentence
    assert torch.equal(made.vector_d, trainer.train(client_task(0, 0, base_d, 0.1)).vector_d)
    assert trainer.evaluate(1, base_d) is None
    assert trainer.evaluate(0, base_d).num_examples == 2


@pytest.mark.parametrize(
    ("training", "steps"),
    [(gradient(batch_size=4), 1), (sgd(steps=3, batch_size=4), 3), (sgd(epochs=2, batch_size=4), 6)],
)
def test_how_many_steps_a_task_takes_is_known_before_it_is_done(digits, training, steps):
    # Ten examples in mini-batches of four: three steps an epoch.
    model = FlatModel(models.build("logreg", digits.input_shape, digits.classes, seed=0))
    trainer = Trainer(digits, [np.arange(10)], model, training, seed=0)
    assert trainer.steps_of(0) == steps
    assert trainer.train(client_task(0, 0, model.parameters_d.clone(), 0.1)).steps == steps


class Raising(Regression):
    """An objective of a user, with a defect."""

    def loss(self, outputs, targets):
        raise ZeroDivisionError("no weights")

    def scores(self, outputs, targets):
        raise KeyError("weights")


class Failing(torch.nn.Linear):
    """A model that cannot compute with an example of -1."""

    def forward(self, inputs):
        if inputs.min() < 0:
            raise ValueError("no number\nbelow 0")
        return super().forward(inputs)


def own_trainer(module, objective, training, inputs) -> Trainer:
    """Client 0 has the first two examples for training and the others for evaluations, client 1 the other way round."""
    data = OwnData("mine", TensorDataset(inputs, inputs), TensorDataset(inputs, inputs))
    own = [np.array([0, 1]), np.array([2, 3])]
    return Trainer(data, own, FlatModel(module), training, seed=0, objective=objective, test_partitions=own[::-1])


@pytest.mark.parametrize("training", [gradient(), sgd(steps=2), scaffold(steps=2)], ids=lambda one: one.name)
def test_a_defect_in_an_objective_gives_a_task_back_with_its_class_and_message(training, caplog):
    trainer = own_trainer(torch.nn.Linear(1, 1), Raising(), training, torch.ones(4, 1))
    base_d = torch.zeros(2)
    with pytest.raises(TrainingFailed, match=r"^the training: ZeroDivisionError: no weights$"):
        trainer.train(client_task(0, 0, base_d, 0.1, extra_d=base_d))
    assert "client 0: the training raised an exception" in caplog.text
    assert "raise ZeroDivisionError" in caplog.text  # its traceback
    assert trainer.evaluate(0, base_d) is None
    assert "client 0: the evaluation raised an exception" in caplog.text and "raise KeyError" in caplog.text


def test_a_model_that_raises_on_the_examples_of_one_client_trains_with_others():
    inputs = torch.tensor([[-1.0], [-1.0], [1.0], [2.0]])
    trainer = own_trainer(Failing(1, 1), Regression(), sgd(steps=1), inputs)
    fresh = own_trainer(Failing(1, 1), Regression(), sgd(steps=1), inputs)
    base_d = torch.tensor([0.5, 0.25])
    with pytest.raises(TrainingFailed, match=r"ValueError: no number below 0$"):
        trainer.train(client_task(0, 0, base_d, 0.1))
    assert trainer.evaluate(1, base_d) is None
    update = trainer.train(client_task(1, 0, base_d, 0.1))
    # Errors of w x + b: 0.75 - 1 and 1.25 - 2. Gradient of w: 2 * (-0.25 - 2 * 0.75) / 2, of b: 2 * -1 / 2.
    assert torch.allclose(update.vector_d, torch.tensor([-0.175, -0.1]))
    assert trainer.evaluate(0, base_d) == fresh.evaluate(0, base_d)


class Named(Regression):
    """An objective of a user, with metrics of any names."""

    names: tuple[str, ...]

    def metrics(self, totals):
        return dict.fromkeys(self.names, 1.0)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["Mae"], "objective 'Named': it returned a metric named 'Mae', expected 1 to 64 characters of a-z0-9_./-"),
        ([f"m{i}" for i in range(33)], "objective 'Named': it returned 33 metrics, expected at most 32"),
    ],
)
def test_metrics_of_an_objective_that_cannot_be_sent_are_refused(names, message):
    trainer = own_trainer(torch.nn.Linear(1, 1), Named(names=names), sgd(steps=1), torch.ones(4, 1))
    with pytest.raises(UserError) as refused:
        trainer.evaluate(0, torch.zeros(2))
    assert str(refused.value) == message


def test_outputs_that_do_not_fit_the_targets_are_refused_at_once():
    trainer = own_trainer(torch.nn.Linear(1, 3), Regression(), sgd(steps=1), torch.ones(4, 1))
    with pytest.raises(UserError, match="expected one output"):
        trainer.train(client_task(0, 0, torch.zeros(6), 0.1))
