"""The models by name. Cross-entropy is their loss, so they end in one logit a class. Source: algorithms.md 5.

Shapes are those of one example, channels first: (1, 28, 28).
"""

from collections.abc import Callable
from math import prod

from torch import nn

from unstale.errors import UserError, unknown_name
from unstale.training.initialise import initialised

Shape = tuple[int, ...]


def logreg(input_shape: Shape, classes: int) -> nn.Module:
    """Logistic regression over the flattened input, of any shape: 7,850 parameters at 784 x 10."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(input_shape), classes))


def lenet_28(input_shape: Shape, classes: int) -> nn.Module:
    """LeNet-5 without padding for 1x28x28: 44,426 parameters at 10 classes."""
    return _lenet(input_shape, classes, flattened=16 * 4 * 4)


def lenet_cifar(input_shape: Shape, classes: int) -> nn.Module:
    """LeNet-5 without padding for 3x32x32: 62,006 parameters at 10 classes, 69,656 at 100."""
    return _lenet(input_shape, classes, flattened=16 * 5 * 5)


def _lenet(input_shape: Shape, classes: int, flattened: int) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(input_shape[0], 6, kernel_size=5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, kernel_size=5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(flattened, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes)),
    )


def digits_cnn(input_shape: Shape, classes: int) -> nn.Module:
    """A small convolutional network for 1x8x8: 5,450 parameters at 10 classes. Ours, not from a paper: on
    unlike clients one wide layer learned faster and more steadily than deeper networks of its size.
    """
    return nn.Sequential(
        *(nn.Conv2d(input_shape[0], 32, kernel_size=3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        nn.Linear(32 * 4 * 4, classes),
    )


MODELS: dict[str, tuple[Callable[[Shape, int], nn.Module], Shape | None]] = {
    "digits_cnn": (digits_cnn, (1, 8, 8)),
    "lenet_28": (lenet_28, (1, 28, 28)),
    "lenet_cifar": (lenet_cifar, (3, 32, 32)),
    "logreg": (logreg, None),
}
"""How each model is made, and the one input shape it takes (None: any)."""


def build(name: str, input_shape: Shape, classes: int, seed: int) -> nn.Module:
    """The model called `name`, on the CPU, with parameters that the seed alone decides.

    input_shape: of one example. classes: >= 2. Raises UserError for an unknown name and for inputs that do
    not fit.
    """
    if name not in MODELS:
        raise unknown_name("model", name, MODELS)
    make, expected_shape = MODELS[name]
    if expected_shape is not None and input_shape != expected_shape:
        fitting = sorted(other for other, (_, shape) in MODELS.items() if shape in (None, input_shape))
        raise UserError(
            f"model {name!r} takes inputs of shape {_spelled(expected_shape)}, but the data set's have shape "
            f"{_spelled(input_shape)}; choose one that fits: {', '.join(fitting)}"
        )
    return initialised(lambda: make(input_shape, classes), seed)


def _spelled(shape: Shape) -> str:
    return "x".join(str(size) for size in shape)
