"""Objectives by name: the loss that training minimises, and the metrics of an evaluation."""

from collections.abc import Collection, Mapping

from unstale.plugins import Registry
from unstale.settings.learning import ObjectiveSettings
from unstale.training.objectives.binary import Binary
from unstale.training.objectives.classification import Classification
from unstale.training.objectives.language_model import LanguageModel
from unstale.training.objectives.objective import Objective, Score
from unstale.training.objectives.regression import Regression
from unstale.training.objectives.segmentation import Segmentation

__all__ = ["OBJECTIVES", "REGISTRY", "Classification", "Objective", "Score", "create"]

OBJECTIVES: Mapping[str, type[Objective]] = {
    "binary": Binary,
    "classification": Classification,
    "language-model": LanguageModel,
    "regression": Regression,
    "segmentation": Segmentation,
}
REGISTRY = Registry(kind="objective", base=Objective, where="unstale.training.objectives", built_in=OBJECTIVES)


def create(settings: ObjectiveSettings, *, code: Collection[str] | None = None) -> Objective:
    """The objective of these settings.

    code: names of other objectives that may be imported, since this machine's user gave them; None for any. Raises
    UserError.
    """
    REGISTRY.check_allowed(settings.name, code)
    return REGISTRY.make(settings)
