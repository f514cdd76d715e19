"""Local trainings by name. Plug-ins: docs/plugins.md."""

from unstale.plugins import Registry
from unstale.settings.learning import TrainingSettings
from unstale.training.local import LocalTraining
from unstale.training.trainings import FedProx, Gradient, Moon, Scaffold, Sgd

TRAININGS: dict[str, type[LocalTraining]] = {
    training.name: training for training in (FedProx, Gradient, Moon, Scaffold, Sgd)
}

REGISTRY = Registry(kind="training", base=LocalTraining, where="unstale.training.local", built_in=TRAININGS)


def create(settings: TrainingSettings) -> LocalTraining:
    """The local training of these settings. Raises UserError."""
    if settings.epochs is not None:
        settings = settings.model_copy(update={"steps": None})
    return REGISTRY.make(settings, shared={"learning_rate"})
