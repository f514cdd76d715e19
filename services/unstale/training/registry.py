"""Local trainings by name."""

from pydantic import ValidationError

from unstale.errors import UserError, nearest, unknown_name
from unstale.training.gradient import Gradient
from unstale.training.local import LocalTraining
from unstale.training.sgd import Sgd

TRAININGS: dict[str, type[Gradient] | type[Sgd]] = {"gradient": Gradient, "sgd": Sgd}


def create(name: str, **settings: object) -> LocalTraining:
    """The local training called `name`. Raises UserError for an unknown name or setting, or a bad value."""
    if name not in TRAININGS:
        raise unknown_name("training", name, TRAININGS)
    training = TRAININGS[name]
    for key in settings:
        if key not in training.model_fields:
            raise UserError(
                f"unknown setting {key!r} of training {name!r}{nearest(key, training.model_fields)}"
            )
    try:
        return training.model_validate(settings)
    except ValidationError as error:
        first = error.errors()[0]
    if not first["loc"]:  # a check over several settings
        raise UserError(f"training {name!r}: {first['msg'].removeprefix('Value error, ')}")
    expected = first["msg"].removeprefix("Input should be ")
    raise UserError(f"training.{first['loc'][0]} is {first['input']!r}, expected {expected}")
