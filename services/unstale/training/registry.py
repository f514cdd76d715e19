"""Local trainings by name."""

from unstale.settings.learning import TrainingSettings
from unstale.settings.part import part
from unstale.training.local import LocalTraining
from unstale.training.trainings import FedProx, Gradient, Moon, Scaffold, Sgd

TRAININGS: dict[str, type[LocalTraining]] = {
    training.name: training for training in (FedProx, Gradient, Moon, Scaffold, Sgd)
}


def create(settings: TrainingSettings) -> LocalTraining:
    """The local training of these settings. Raises UserError."""
    if settings.epochs is not None:
        settings = settings.model_copy(update={"steps": None})
    return part(settings, "training", TRAININGS, shared={"learning_rate"})
