from itertools import permutations

import pytest
import torch

from unstale.flat import FlatModel
from unstale.seeds import Stream, stream
from unstale.training import models
from unstale.training.datasets import load
from unstale.training.evaluate import evaluate
from unstale.training.gradient import Gradient
from unstale.training.partition import split
from unstale.training.sgd import Sgd
from unstale.training.trainer import Trainer


@pytest.fixture(scope="module")
def digits():
    return load("digits")


def a_trainer(digits, training) -> tuple[Trainer, torch.Tensor]:
    model = FlatModel(models.build("digits_cnn", digits.input_shape, digits.classes, seed=0))
    shares = split("dirichlet", digits.labels_train_N.numpy(), 5, stream(0, Stream.PARTITION), alpha=0.3)
    return Trainer(digits, shares, model, training, seed=0), model.parameters_d.clone()


@pytest.mark.parametrize("training", [Gradient(), Sgd(steps=3, momentum=0.9)], ids=["gradient", "sgd"])
def test_an_update_is_the_same_bits_whichever_clients_were_trained_before(digits, training):
    tasks = [(0, 0), (3, 0), (3, 1)]
    alone = {}
    for client_id, number in tasks:
        trainer, base_d = a_trainer(digits, training)
        alone[client_id, number] = trainer.train(client_id, number, base_d, 0.1)
    for order in permutations(tasks):
        trainer, base_d = a_trainer(digits, training)
        for client_id, number in order:
            update = trainer.train(client_id, number, base_d, 0.1)
            assert torch.equal(update.vector_d, alone[client_id, number].vector_d)
            assert update.loss == alone[client_id, number].loss
    assert len({update.loss for update in alone.values()}) == len(tasks)


def test_a_client_trains_on_its_own_share_with_its_own_stream(digits):
    trainer, base_d = a_trainer(digits, Sgd(steps=2))
    shares = split("dirichlet", digits.labels_train_N.numpy(), 5, stream(0, Stream.PARTITION), alpha=0.3)
    update = trainer.train(2, 7, base_d, 0.1)
    model = FlatModel(models.build("digits_cnn", digits.input_shape, digits.classes, seed=0))
    expected = Sgd(steps=2).compute(
        model,
        base_d,
        digits.inputs_train_NX[shares[2]],
        digits.labels_train_N[shares[2]],
        stream(0, Stream.BATCHES, 2, 7),
        learning_rate=0.1,
    )
    assert update.num_examples == len(shares[2])
    assert torch.equal(update.vector_d, expected.vector_d)


def test_the_digits_model_learns_the_digits_when_all_data_lie_in_one_place(digits):
    model = FlatModel(models.build("digits_cnn", digits.input_shape, digits.classes, seed=0))
    shares = split("iid", digits.labels_train_N.numpy(), 1, stream(0, Stream.PARTITION))
    base_d = model.parameters_d.clone()
    update = Trainer(digits, shares, model, Sgd(epochs=15, momentum=0.9), seed=0).train(0, 0, base_d, 0.02)
    model_d = base_d - update.vector_d
    result = evaluate(model, model_d, digits.inputs_test_MX, digits.labels_test_M, digits.classes)
    assert result.accuracy >= 0.97
