"""Language models: prediction of the next token.

Legend: b examples of a batch, t tokens of an example, V tokens of the vocabulary.
"""

from collections.abc import Mapping
from math import exp, inf
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import cross_entropy
from typing_extensions import override

from unstale.training.measured import MainMetric
from unstale.training.objectives.objective import Objective, Score, scalar
from unstale.training.objectives.shapes import misfit

_LOSS_MAX = 700.0  # nats; e^x of more is no float


class LanguageModel(Objective):
    """Cross-entropy of logits [b, t, V] and the next tokens [b, t] int64: perplexity, loss.

        loss = mean over tokens of -log p(token),   perplexity = e^loss

    The targets are the tokens behind those of the inputs: the data set shifts them. Targets `ignore_index` count
    nowhere, such as padding.
    Source: docs/methods/objectives.md#language-model
    """

    main: ClassVar[MainMetric] = MainMetric("perplexity", higher_is_better=False)

    ignore_index: int = -100

    @override
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        logits_nV, tokens_n = self._flat(outputs, targets)
        return cross_entropy(logits_nV, tokens_n, ignore_index=self.ignore_index)

    @override
    def scores(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Score]:
        logits_nV, tokens_n = self._flat(outputs, targets)
        entropy_n = cross_entropy(logits_nV, tokens_n, ignore_index=self.ignore_index, reduction="none")
        return {"loss": Score(scalar(entropy_n.double().sum()), scalar((tokens_n != self.ignore_index).sum()))}

    @override
    def metrics(self, totals: Mapping[str, Score]) -> Mapping[str, float]:
        loss = totals["loss"].mean
        return {"perplexity": inf if loss > _LOSS_MAX else exp(loss), "loss": loss}

    def _flat(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        if outputs.shape[:-1] != targets.shape:
            raise misfit(outputs, targets, "logits [b, t, V] for tokens [b, t]")
        return outputs.flatten(0, -2), targets.flatten()
