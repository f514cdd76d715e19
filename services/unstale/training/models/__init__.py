"""Models by name: built-in networks, torchvision's image classifiers, and factories of the user."""

from unstale.training.models.networks import Shape
from unstale.training.models.registry import MODELS, build, features, find

__all__ = ["MODELS", "Shape", "build", "features", "find"]
