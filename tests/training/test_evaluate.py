from math import exp, log

import pytest
import torch
from torch import nn

from unstale.flat import FlatModel
from unstale.training.evaluate import Evaluation, evaluate


def workspace() -> FlatModel:
    """Logits (w0 x, w1 x, w2 x); dropout, so that a model left in training mode would answer by chance."""
    return FlatModel(nn.Sequential(nn.Dropout(0.5), nn.Linear(1, 3, bias=False)))


@pytest.mark.parametrize("batch_size", [1, 2, 3, 1000])
def test_an_evaluation_by_hand_with_a_partial_last_batch(batch_size):
    # w = (1, -1, -50) and x = 1: logits (1, -1, -50), so class 0, and e^-51 is lost in float32.
    # Label 0 is right, loss ln(e^1 + e^-1) - 1 = ln(1 + e^-2); label 1 wrong, loss 2 + ln(1 + e^-2).
    model_d = torch.tensor([1.0, -1.0, -50.0])
    inputs, labels = torch.ones(3, 1), torch.tensor([0, 1, 0])
    result = evaluate(workspace(), model_d, inputs, labels, 3, batch_size=batch_size)
    assert result == Evaluation(
        accuracy=2 / 3,
        loss=pytest.approx(log(1 + exp(-2)) + 2 / 3, rel=1e-6),
        class_accuracy=(1.0, 0.0, None),
        examples=3,
    )


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_is_put_back_and_nothing_is_written_to(training):
    model = workspace()
    model.module.train(training)
    model_d, inputs, labels = torch.ones(3), torch.ones(2, 1), torch.tensor([0, 1])
    evaluate(model, model_d, inputs, labels, 3)
    assert model.module.training is training
    assert model_d.tolist() == [1, 1, 1]
    assert torch.equal(model.gradient_d, torch.zeros(3))


def test_a_models_buffers_are_those_of_the_version():
    # Running mean (2, 0) and variance 1: logits (x - 2, 0), so class 0 wins at x = 3 alone.
    model = FlatModel(nn.BatchNorm1d(2, eps=0.0))
    inputs, labels = torch.tensor([[1.0, 0.0], [3.0, 0.0]]), torch.tensor([0, 0])
    model_d = torch.tensor([1.0, 1.0, 0.0, 0.0])
    buffers_b = torch.tensor([2.0, 0.0, 1.0, 1.0])
    assert evaluate(model, model_d, inputs, labels, 2).accuracy == 1
    assert evaluate(model, model_d, inputs, labels, 2, buffers_b=buffers_b).accuracy == 1 / 2
    assert torch.equal(model.buffers_b, buffers_b)
