from math import exp, log

import pytest
import torch
from torch import nn

from unstale.errors import UserError
from unstale.flat import FlatModel
from unstale.training.evaluate import Evaluation, evaluate


def workspace() -> FlatModel:
    """Logits (w0 x, w1 x, w2 x); dropout, so that a model left in training mode would answer by chance."""
    return FlatModel(nn.Sequential(nn.Dropout(0.5), nn.Linear(1, 3, bias=False)))


@pytest.mark.parametrize("added_together", [1, 2, 3, 1000])
def test_an_evaluation_by_hand_with_a_partial_last_batch(added_together, monkeypatch):
    monkeypatch.setattr("unstale.training.evaluate._SUMMED", added_together)
    # w = (1, -1, -50) and x = 1: logits (1, -1, -50), so class 0, and e^-51 is lost in float32.
    # Label 0 is right, loss ln(e^1 + e^-1) - 1 = ln(1 + e^-2); label 1 wrong, loss 2 + ln(1 + e^-2).
    model_d = torch.tensor([1.0, -1.0, -50.0])
    inputs, labels = torch.ones(3, 1), torch.tensor([0, 1, 0])
    result = evaluate(workspace(), model_d, inputs, labels, 3)
    assert result == Evaluation(
        accuracy=2 / 3,
        loss=pytest.approx(log(1 + exp(-2)) + 2 / 3, rel=1e-6),
        class_accuracy=(1.0, 0.0, None),
        examples=3,
    )


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_is_restored_and_nothing_is_written_to(training):
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


class Witness(nn.Module):
    """Remembers where its parameters lie when it is called. shift: added to them each time."""

    def __init__(self, shift: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.shift = shift
        self.seen_at = 0

    def forward(self, inputs_BX: torch.Tensor) -> torch.Tensor:
        self.seen_at = self.weight.data_ptr()
        self.weight.data += self.shift
        return inputs_BX * self.weight


def test_the_version_is_not_copied_and_the_workspace_needs_no_memory_of_its_own():
    module = Witness()
    model = FlatModel(module)
    own_d = model.parameters_d
    model.load(torch.tensor([5.0, 6.0, 7.0]))
    model_d, inputs, labels = torch.tensor([1.0, 2.0, 3.0]), torch.ones(1, 1), torch.tensor([2])
    assert evaluate(model, model_d, inputs, labels, 3).accuracy == 1
    assert module.seen_at == model_d.data_ptr()
    assert module.weight.tolist() == own_d.tolist() == [5, 6, 7]
    model.release()
    assert evaluate(model, model_d, inputs, labels, 3).accuracy == 1


def test_a_model_that_writes_to_its_parameters_is_refused():
    inputs, labels = torch.ones(1, 1), torch.tensor([0])
    with pytest.raises(UserError, match="the model writes to its parameters when it is evaluated, expected"):
        evaluate(FlatModel(Witness(shift=1.0)), torch.ones(3), inputs, labels, 3)
