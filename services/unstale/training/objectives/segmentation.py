"""Semantic segmentation: the class of each pixel.

Legend: b examples of a batch, C classes, H x W pixels.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from typing_extensions import override

from unstale.training.measured import MainMetric
from unstale.training.objectives.objective import Objective, Score, scalar
from unstale.training.objectives.shapes import class_counts, misfit


class Segmentation(Objective):
    """Cross-entropy of logits [b, C, H, W] and classes [b, H, W] int64 of pixels: mean_iou, pixel_accuracy, loss.

        IoU_c = pixels that are and are predicted as c / pixels that are or are predicted as c

    mean_iou is the mean over the classes that occur in targets or predictions of all examples. Pixels of the class
    `ignore_index` count nowhere.
    Source: docs/methods/objectives.md#segmentation
    """

    main: ClassVar[MainMetric] = MainMetric("mean_iou", higher_is_better=True)
    pass_examples: ClassVar[int] = 8

    ignore_index: int = -100

    @override
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self._check(outputs, targets)
        return cross_entropy(outputs, targets, ignore_index=self.ignore_index)

    @override
    def scores(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Score]:
        self._check(outputs, targets)
        classes = outputs.shape[1]
        counts, predicted = targets != self.ignore_index, outputs.argmax(dim=1)
        entropy = cross_entropy(outputs, targets, ignore_index=self.ignore_index, reduction="none")
        pairs = class_counts(targets * classes + predicted, classes**2, counts)
        true_predicted_CC = pairs.view(classes, classes)
        both_C, pixels = true_predicted_CC.diagonal(), scalar(pairs.sum())
        union_C = true_predicted_CC.sum(0) + true_predicted_CC.sum(1) - both_C
        return {
            "iou": Score(both_C, union_C),
            "pixel_accuracy": Score(scalar(both_C.sum()), pixels),
            "loss": Score(scalar(entropy.double().sum()), pixels),
        }

    @override
    def metrics(self, totals: Mapping[str, Score]) -> Mapping[str, float]:
        intersection_C, union_C = torch.as_tensor(totals["iou"].sum), torch.as_tensor(totals["iou"].count)
        occurs_C = union_C > 0
        iou_C = intersection_C[occurs_C].double() / union_C[occurs_C]
        return {
            "mean_iou": float(iou_C.mean()),
            "pixel_accuracy": totals["pixel_accuracy"].mean,
            "loss": totals["loss"].mean,
        }

    def _check(self, outputs: Tensor, targets: Tensor) -> None:
        if outputs.shape[:1] + outputs.shape[2:] != targets.shape:
            raise misfit(outputs, targets, "logits [b, C, H, W] for classes [b, H, W]")
