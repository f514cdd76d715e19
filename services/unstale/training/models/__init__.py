"""Models by name: built-in networks, torchvision's image classifiers, and factories of the user."""

from unstale.training.models.last_linear import features
from unstale.training.models.networks import Shape
from unstale.training.models.registry import MODELS, build, find

__all__ = ["MODELS", "Shape", "build", "features", "find"]
