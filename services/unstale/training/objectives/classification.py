"""Classification of each example as one of C classes.

Source: docs/methods/objectives.md#classification

Legend: b examples of a batch, C classes.
"""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import cross_entropy
from typing_extensions import override

from unstale.training.measured import MainMetric
from unstale.training.objectives.objective import Objective, Score, scalar
from unstale.training.objectives.shapes import class_counts


class Classification(Objective):
    """Cross-entropy of logits [b, C] and classes [b] int64: accuracy, loss.

    Source: docs/methods/objectives.md#classification
    """

    main: ClassVar[MainMetric] = MainMetric("accuracy", higher_is_better=True)
    pass_examples: ClassVar[int] = 250  # so that activations fit a processor's cache
    score_passes: ClassVar[int] = 4

    @override
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets)

    @override
    def scores(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Score]:
        classes, hits = outputs.shape[1], outputs.argmax(dim=1) == targets
        return {
            "accuracy": Score(class_counts(targets, classes, hits), class_counts(targets, classes)),
            "loss": Score(scalar(cross_entropy(outputs, targets, reduction="sum")), len(targets)),
        }

    @override
    def class_accuracy(self, totals: Mapping[str, Score]) -> tuple[float | None, ...]:
        score = totals["accuracy"]
        assert isinstance(score.sum, Tensor) and isinstance(score.count, Tensor)
        pairs = zip(score.sum.tolist(), score.count.tolist(), strict=True)
        return tuple(hits / examples if examples else None for hits, examples in pairs)
