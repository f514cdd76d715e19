"""Local trainings by name."""

from collections.abc import Mapping

from pydantic.fields import FieldInfo

from unstale.errors import UserError, unknown_name
from unstale.training.build import build
from unstale.training.fedprox import FedProx
from unstale.training.gradient import Gradient
from unstale.training.local import LocalTraining
from unstale.training.moon import Moon
from unstale.training.scaffold import Scaffold
from unstale.training.sgd import Sgd

TRAININGS: dict[str, type[LocalTraining]] = {
    training.name: training for training in (FedProx, Gradient, Moon, Scaffold, Sgd)
}


def create(name: str, **settings: object) -> LocalTraining:
    """The local training called `name`. Raises UserError for an unknown name or setting, one that is another
    training's, or a bad value.
    """
    taken = settings_of(name)
    for key in settings:
        others = [other for other, training in TRAININGS.items() if key in training.model_fields]
        if key not in taken and others:
            raise UserError(
                f"training.{key} is {settings[key]!r}, which training {name!r} does not take, "
                f"only {' and '.join(', '.join(others).rsplit(', ', 1))}; leave it out or choose another training"
            )
    return build("training", TRAININGS, name, settings)


def settings_of(name: str) -> Mapping[str, FieldInfo]:
    """The settings that a training takes, by name. Raises UserError for an unknown one."""
    if name not in TRAININGS:
        raise unknown_name("training", name, TRAININGS)
    return TRAININGS[name].model_fields
