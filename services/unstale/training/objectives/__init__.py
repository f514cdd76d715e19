"""Objectives by name: the loss that training minimises, and the metrics of an evaluation."""

from collections.abc import Collection, Mapping
from typing import Any

from pydantic import ValidationError

from unstale import plugins
from unstale.errors import UserError
from unstale.settings.learning import ObjectiveSettings
from unstale.training.import_factory import import_factory
from unstale.training.objectives.binary import Binary
from unstale.training.objectives.classification import Classification
from unstale.training.objectives.language_model import LanguageModel
from unstale.training.objectives.objective import Objective, Score
from unstale.training.objectives.regression import Regression
from unstale.training.objectives.segmentation import Segmentation

__all__ = ["OBJECTIVES", "Classification", "Objective", "Score", "create"]

GROUP = "unstale.objectives"
"""Entry points of objectives in other packages."""

OBJECTIVES: Mapping[str, type[Objective]] = {
    "binary": Binary,
    "classification": Classification,
    "language-model": LanguageModel,
    "regression": Regression,
    "segmentation": Segmentation,
}


def create(settings: ObjectiveSettings, *, code: Collection[str] | None = None) -> Objective:
    """The objective of these settings.

    code: names of other objectives that may be imported, since this machine's user gave them; None for any. Raises
    UserError.
    """
    name = settings.name
    if name not in OBJECTIVES and code is not None and name not in code:
        raise UserError(
            f"objective {name!r} is code, which only this machine's own configuration may name; "
            f"expected one of {', '.join(OBJECTIVES)}"
        )
    if ":" in name:
        factory: Any = import_factory("objective", name)
    else:
        factory = plugins.load("objective", name, GROUP, Objective, "unstale.training.objectives.Objective", OBJECTIVES)
    try:
        made = factory(**settings.settings)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, ("objective.settings", *first["loc"])))
        raise UserError(
            f"{key} is {first['input']!r}, which objective {name!r} does not take ({first['msg']})"
        ) from None
    if not isinstance(made, Objective):
        raise UserError(
            f"objective {name!r} is made as a {type(made).__name__}, expected an unstale.training.objectives.Objective"
        )
    return made
