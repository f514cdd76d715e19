"""Models by name, made for a data set.

Source: docs/methods/models.md#models
"""

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import partial

from torch import nn

from unstale.errors import UserError, unknown_name
from unstale.training.initialise import initialised
from unstale.training.models import external, networks, resnets
from unstale.training.models.last_linear import with_projection_head
from unstale.training.models.networks import Shape

MODELS: dict[str, tuple[Callable[[Shape, int], nn.Module], Shape | None]] = {
    "celeba_cnn": (networks.celeba_cnn, (3, 84, 84)),
    "cnn3": (networks.cnn3, (1, 28, 28)),
    "digits_cnn": (networks.digits_cnn, (1, 8, 8)),
    "emnist_cnn": (networks.emnist_cnn, (1, 28, 28)),
    "lenet_28": (networks.lenet_28, (1, 28, 28)),
    "lenet_28_padded": (networks.lenet_28_padded, (1, 28, 28)),
    "lenet_cifar": (networks.lenet_cifar, (3, 32, 32)),
    "lenet_gi": (networks.lenet_gi, (1, 28, 28)),
    "logreg": (networks.logreg, None),
    "resnet18": (resnets.resnet18, (3, 32, 32)),
    "resnet8": (resnets.resnet8, (3, 32, 32)),
}
"""How each of our models is made, and the one input shape it takes (None: any)."""

NAMES = (*MODELS, f"{external.TORCHVISION}NAME", "package.module:factory")
"""What a user may write, for people to read."""

_NORMED = {"resnet8": resnets.resnet8, "resnet18": resnets.resnet18}

Maker = Callable[[Shape, int], nn.Module]


def find(name: str, *, norm: str = "group", allow_factory: bool = True) -> tuple[Maker, Shape | None]:
    """How the model is made, and the one input shape it takes (None: not known before it is made).

    norm: `group` or `batch`, of our ResNets. allow_factory: whether `package.module:factory` may be imported; no client
    does so because a server says it. Raises UserError for a name or norm that does not exist or is not allowed.
    """
    if norm not in resnets.NORMS:
        raise unknown_name("model.norm", norm, resnets.NORMS)
    if name in _NORMED:
        return partial(_NORMED[name], norm=norm), MODELS[name][1]
    if norm != "group":
        raise UserError(
            f"model.norm is {norm!r}, but model {name!r} leaves no choice; expected {' or '.join(_NORMED)}"
        )
    if name in MODELS:
        return MODELS[name]
    if ":" in name:
        if not allow_factory:
            raise UserError(
                f"model {name!r} is code, which is not imported because another side names it; "
                "name it in this side's own configuration too, or choose a model that unstale has"
            )
        return external.factory(name), None
    if name.startswith(external.TORCHVISION):
        return external.torchvision_model(name.removeprefix(external.TORCHVISION)), None
    theirs = external.torchvision_names()
    if name not in theirs:
        raise unknown_name(
            "model",
            name,
            _meant(name, theirs) or NAMES,
        )
    return external.torchvision_model(name), None


def _meant(name: str, theirs: Sequence[str]) -> list[str]:
    """Ours that begin like it, else what is spelled most alike."""
    begun = [ours for ours in MODELS if ours.startswith(name)]
    return begun or get_close_matches(name, (*MODELS, *theirs), n=1)


def build(
    name: str,
    input_shape: Shape,
    classes: int,
    seed: int,
    *,
    norm: str = "group",
    projection_head: int | None = None,
    allow_factory: bool = True,
) -> nn.Module:
    """The model called `name`, on the CPU, with parameters that the seed alone decides.

    input_shape: of one example. classes: >= 2. norm, allow_factory: as for `find`. projection_head: numbers that
    MOON's head gives, >= 1, for a model with one. Raises UserError for a name that `find` refuses, for inputs that do
    not fit, and for a model that cannot be trained here.
    """
    make, expected_shape = find(name, norm=norm, allow_factory=allow_factory)
    if expected_shape is not None and input_shape != expected_shape:
        raise UserError(
            f"model {name!r} takes inputs of shape {external.spelled(expected_shape)}, but the data set's have "
            f"shape {external.spelled(input_shape)}; {_fitting(input_shape)}"
        )

    def made() -> nn.Module:
        module = make(input_shape, classes)
        if name not in MODELS:
            module = external.checked(name, module, input_shape, classes)
        if projection_head is not None:
            module = with_projection_head(module, classes, projection_head)
        return module

    try:
        return initialised(made, seed)
    except external.MisfitError as misfit:
        raise UserError(
            f"model {name!r} does not take the data set's inputs of shape {external.spelled(input_shape)} "
            f"({misfit}); {_fitting(input_shape)}"
        ) from misfit


def _fitting(input_shape: Shape) -> str:
    fitting = sorted(name for name, (_, shape) in MODELS.items() if shape in (None, input_shape))
    return f"choose one that fits: {', '.join(fitting)}"
