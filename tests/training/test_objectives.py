"""The built-in objectives, against values by hand, and against scikit-learn where it has the same."""

from importlib.metadata import EntryPoint, EntryPoints
from math import exp, isnan, log, sqrt
from typing import Any

import pytest
import torch
from sklearn.metrics import jaccard_score, mean_absolute_error, r2_score
from torch import Tensor

from unstale import plugins
from unstale.errors import UserError
from unstale.settings.learning import ObjectiveSettings
from unstale.training.measured import MainMetric
from unstale.training.objectives import OBJECTIVES, Objective, Score, create


def objective(name: str, **settings: Any) -> Objective:
    return create(ObjectiveSettings(name=name, settings=settings))


def measured(made: Objective, *batches: tuple[Tensor, Tensor]) -> dict[str, float]:
    totals: dict[str, Score] = {}
    for outputs, targets in batches:
        for name, score in made.scores(outputs, targets).items():
            totals[name] = totals[name] + score if name in totals else score
    return dict(made.metrics(totals))


def test_a_classification_by_hand() -> None:
    # Softmax of (0, ln 3): 1/4 and 3/4. Classes 1, 0, 1: losses ln 4/3, ln 4, ln 4/3; the second is wrong.
    outputs = torch.tensor([[0.0, log(3)]]).repeat(3, 1)
    targets = torch.tensor([1, 0, 1])
    made = objective("classification")
    loss = (2 * log(4 / 3) + log(4)) / 3
    assert made.loss(outputs, targets).item() == pytest.approx(loss)
    assert measured(made, (outputs, targets)) == {"accuracy": 2 / 3, "loss": pytest.approx(loss)}
    assert made.class_accuracy(made.scores(outputs, targets)) == (0.0, 1.0)
    assert made.class_accuracy(made.scores(outputs[:1], targets[:1])) == (None, 1.0)


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_a_binary_classification_by_hand(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    # Sigmoid of ln 3 is 3/4, of -ln 3 is 1/4. Right, right, wrong, wrong: losses ln 4/3 twice, ln 4 twice.
    outputs = torch.tensor([log(3), -log(3), log(3), -log(3)]).reshape(shape)
    targets = torch.tensor([1, 0, 0, 1]).to(dtype)
    made = objective("binary")
    loss = (log(4 / 3) + log(4)) / 2
    assert made.loss(outputs, targets).item() == pytest.approx(loss)
    assert measured(made, (outputs, targets)) == {"accuracy": 0.5, "loss": pytest.approx(loss)}


def test_a_regression_by_hand() -> None:
    # Errors 1, 0, -2, 1 of targets 0, 1, 2, 5 of mean 2: squares 6 of 14 around the mean.
    outputs, targets = torch.tensor([[1.0], [1.0], [0.0], [6.0]]), torch.tensor([0.0, 1.0, 2.0, 5.0])
    made = objective("regression")
    assert made.loss(outputs, targets).item() == 1.5
    assert measured(made, (outputs, targets)) == {"mae": 1.0, "loss": 1.5, "r2": pytest.approx(1 - 6 / 14)}
    assert measured(made, (outputs[:3], targets[:3]), (outputs[3:], targets[3:]))["r2"] == pytest.approx(1 - 6 / 14)


def test_a_regression_of_several_numbers_is_that_of_scikit_learn() -> None:
    drawn = torch.Generator().manual_seed(0)
    targets = torch.randn(50, 3, generator=drawn) * torch.tensor([1.0, 2.0, 3.0]) + 5
    outputs = targets + torch.randn(50, 3, generator=drawn)
    metrics = measured(objective("regression"), (outputs[:20], targets[:20]), (outputs[20:], targets[20:]))
    assert metrics["r2"] == pytest.approx(r2_score(targets, outputs, multioutput="variance_weighted"), rel=1e-6)
    assert metrics["mae"] == pytest.approx(mean_absolute_error(targets, outputs), rel=1e-6)


def test_the_share_of_explained_variance_of_constant_targets_is_nan() -> None:
    targets = torch.ones(3)
    assert isnan(measured(objective("regression"), (torch.zeros(3), targets))["r2"])


def test_outputs_are_not_spread_over_targets() -> None:
    for name in ("regression", "binary"):
        with pytest.raises(
            UserError, match=r"outputs of shape \[2, 3\] for targets of shape \[2\], expected one output"
        ):
            objective(name).loss(torch.zeros(2, 3), torch.zeros(2))


def logits_of(classes: Tensor, number: int, scale: float) -> Tensor:
    """Logits [b, C, ...] that predict these classes [b, ...]: `scale` for them, 0 for the others."""
    return torch.nn.functional.one_hot(classes, number).movedim(-1, 1) * scale


def test_a_segmentation_by_hand() -> None:
    # Two images of 1 x 3 pixels and three classes; the last pixel is ignored. Pixels that are / are predicted as c:
    # class 0: 2 / 1, both 1, IoU 1/2; class 1: 2 / 3, both 2, IoU 2/3; class 2: 1 / 1, both 1, IoU 1.
    targets = torch.tensor([[[0, 0, 1]], [[1, 2, 9]]])
    predicted = torch.tensor([[[0, 1, 1]], [[1, 2, 0]]])
    outputs = logits_of(predicted, 3, log(2))  # probabilities 1/2, 1/4, 1/4
    made = objective("segmentation", ignore_index=9)
    loss = (4 * log(2) + log(4)) / 5
    assert made.loss(outputs, targets).item() == pytest.approx(loss)
    expected = {
        "mean_iou": pytest.approx((1 / 2 + 2 / 3 + 1) / 3),
        "pixel_accuracy": 4 / 5,
        "loss": pytest.approx(loss),
    }
    assert measured(made, (outputs, targets)) == expected
    assert measured(made, (outputs[:1], targets[:1]), (outputs[1:], targets[1:])) == expected


def test_the_mean_iou_is_over_the_classes_that_occur() -> None:
    drawn = torch.Generator().manual_seed(0)
    targets, predicted = (torch.randint(0, 4, (3, 5, 6), generator=drawn) for _ in range(2))
    metrics = measured(objective("segmentation"), (logits_of(predicted, 9, 1.0), targets))  # 5 classes never occur
    assert metrics["mean_iou"] == pytest.approx(jaccard_score(targets.flatten(), predicted.flatten(), average="macro"))


def test_a_language_model_by_hand() -> None:
    # Probabilities of the right token 1/2, 1/4, 1/8 and one that is ignored: perplexity (2 * 4 * 8)^(1/3) = 4.
    outputs = torch.tensor([[[0.5, 0.5], [0.75, 0.25]], [[0.125, 0.875], [0.9, 0.1]]]).log()
    targets = torch.tensor([[0, 1], [0, -100]])
    made = objective("language-model")
    assert made.loss(outputs, targets).item() == pytest.approx(log(4))
    metrics = measured(made, (outputs, targets))
    assert metrics == {"perplexity": pytest.approx(4.0), "loss": pytest.approx(log(4))}
    apart = measured(made, (outputs[:1], targets[:1]), (outputs[1:], targets[1:]))
    assert apart["perplexity"] == pytest.approx(4.0)  # not the mean of sqrt(8) and 8
    assert (sqrt(8) + 8) / 2 != pytest.approx(4.0)


def test_a_perplexity_beyond_all_floats_is_infinite() -> None:
    outputs = torch.tensor([[[0.0, 1e4]]])
    assert measured(objective("language-model"), (outputs, torch.tensor([[0]])))["perplexity"] == float("inf")


@pytest.mark.parametrize(
    ("name", "main"),
    [
        ("classification", MainMetric("accuracy", higher_is_better=True)),
        ("binary", MainMetric("accuracy", higher_is_better=True)),
        ("regression", MainMetric("mae", higher_is_better=False)),
        ("segmentation", MainMetric("mean_iou", higher_is_better=True)),
        ("language-model", MainMetric("perplexity", higher_is_better=False)),
    ],
)
def test_each_objective_has_a_main_metric_among_its_metrics(name: str, main: MainMetric) -> None:
    assert objective(name).main == main
    assert len(OBJECTIVES) == 5


class Huber(Objective):
    """An objective of a user."""

    main = MainMetric("huber", higher_is_better=False)

    delta: float = 1.0

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return torch.nn.functional.huber_loss(outputs, targets, delta=self.delta)

    def scores(self, outputs: Tensor, targets: Tensor) -> dict[str, Score]:
        return {"huber": Score(self.loss(outputs, targets).item() * len(targets), len(targets))}


OWN = f"{__name__}:Huber"


def test_an_objective_of_the_user_is_imported_if_this_machine_names_it() -> None:
    # |error| 3 beyond delta 2: 2 * (3 - 1) = 4.
    made = objective(OWN, delta=2.0)
    assert measured(made, (torch.zeros(1), torch.tensor([3.0]))) == {"huber": 4.0}
    settings = ObjectiveSettings(name=OWN)
    assert type(create(settings, code=[OWN])) is Huber
    with pytest.raises(UserError, match="is code, which only this machine's own configuration may name"):
        create(settings, code=["another:Objective"])
    assert type(create(ObjectiveSettings(name="regression"), code=[])).__name__ == "Regression"


def test_a_package_registers_an_objective_by_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        EntryPoint(name="huber", value=OWN, group="unstale.objectives"),
        EntryPoint(name="wrong", value="builtins:dict", group="unstale.objectives"),
    ]
    monkeypatch.setattr(plugins, "entry_points", lambda **wanted: EntryPoints(points).select(**wanted))
    assert type(objective("huber", delta=2.0)) is Huber
    with pytest.raises(UserError, match=r"expected a class derived from unstale\.training\.objectives\.Objective"):
        objective("wrong")
    with pytest.raises(UserError, match="is code, which only this machine's own configuration may name"):
        create(ObjectiveSettings(name="huber"), code=[])


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("huber", {}, "unknown objective 'huber'"),
        ("regression", {"delta": 1}, "^unknown setting 'delta' of objective 'regression', which has no settings$"),
        (
            "segmentation",
            {"ignore_index": "x"},
            "^setting 'ignore_index' of objective 'segmentation' is 'x', expected a whole number$",
        ),
        ("builtins:dict", {}, "objective 'builtins:dict' is the class dict, expected a class derived from unstale"),
    ],
)
def test_what_is_no_objective_is_refused(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        objective(name, **settings)


def test_the_perplexity_is_a_function_of_the_mean_loss() -> None:
    drawn = torch.Generator().manual_seed(1)
    outputs, targets = torch.randn(4, 7, 5, generator=drawn), torch.randint(0, 5, (4, 7), generator=drawn)
    metrics = measured(objective("language-model"), (outputs, targets))
    assert metrics["perplexity"] == pytest.approx(exp(metrics["loss"]))
