"""Models by name, built for a data set.

Source: docs/methods/models.md#models
"""

from difflib import get_close_matches
from functools import partial

from torch import nn

from unstale.errors import UserError, unknown_name
from unstale.training.initialise import seeded
from unstale.training.models import external, networks
from unstale.training.models.last_linear import with_projection_head
from unstale.training.models.networks import Maker, Shape

MODELS: dict[str, tuple[Maker, Shape | None]] = {
    "celeba_cnn": (networks.celeba_cnn, (3, 84, 84)),
    "cnn3": (networks.cnn3, (1, 28, 28)),
    "digits_cnn": (networks.digits_cnn, (1, 8, 8)),
    "emnist_cnn": (networks.emnist_cnn, (1, 28, 28)),
    "lenet_28": (networks.lenet_28, (1, 28, 28)),
    "lenet_28_padded": (networks.lenet_28_padded, (1, 28, 28)),
    "lenet_cifar": (networks.lenet_cifar, (3, 32, 32)),
    "lenet_gi": (networks.lenet_gi, (1, 28, 28)),
    "logreg": (networks.logreg, None),
    "resnet18": (networks.resnet18, (3, 32, 32)),
    "resnet8": (networks.resnet8, (3, 32, 32)),
}
"""Factory and input shape (None: any) of each built-in model."""

NAMES = (*MODELS, f"{external.TORCHVISION}NAME", "package.module:factory")
"""Names for people."""

_NORMED = {"resnet8": networks.resnet8, "resnet18": networks.resnet18}


def find(name: str, *, norm: str = "group", allow_factory: bool = True) -> tuple[Maker, Shape | None]:
    """Factory and input shape (None: any or unknown) of a model.

    norm: `group` or `batch`, for built-in ResNets. allow_factory: may import `package.module:factory`; never for a name
    from a server. Raises UserError for a name or norm that does not exist or is not allowed.
    """
    if norm not in networks.NORMS:
        raise unknown_name("model.norm", norm, networks.NORMS)
    if name in _NORMED:
        return partial(_NORMED[name], norm=norm), MODELS[name][1]
    if norm != "group":
        raise UserError(f"model.norm is {norm!r}, but model {name!r} leaves no choice; expected {' or '.join(_NORMED)}")
    if name in MODELS:
        return MODELS[name]
    if ":" in name:
        if not allow_factory:
            raise UserError(
                f"model {name!r} is code, which is not imported because another side names it; "
                "name it in this side's own configuration too, or choose a model that unstale has"
            )
        return external.factory(name), None
    if not name.startswith(external.TORCHVISION) and name not in external.torchvision_names():
        raise unknown_name("model", name, _similar(name) or NAMES)
    return external.torchvision_model(name.removeprefix(external.TORCHVISION)), None


def _similar(name: str) -> list[str]:
    """Built-in models with this prefix, else the most similar name."""
    prefixed = [built_in for built_in in MODELS if built_in.startswith(name)]
    return prefixed or get_close_matches(name, (*MODELS, *external.torchvision_names()), n=1)


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
    """The model of a name, on the CPU, with parameters that depend on the seed only.

    norm, allow_factory: as for `find`. input_shape: of one example. projection_head: outputs of MOON's head, >= 1; None
    for no head. Raises UserError for a name that `find` refuses, another input shape, and a model that cannot be
    trained here.
    """
    make, expected_shape = find(name, norm=norm, allow_factory=allow_factory)
    if expected_shape is not None and input_shape != expected_shape:
        raise UserError(
            f"model {name!r} takes inputs of shape {external.spelled(expected_shape)}, but the data set's have "
            f"shape {external.spelled(input_shape)}; {_fitting(input_shape)}"
        )

    try:
        with seeded(seed):
            module = make(input_shape, classes)
            if name not in MODELS:
                module = external.checked(name, module, input_shape, classes)
            if projection_head is not None:
                module = with_projection_head(module, classes, projection_head)
            return module
    except external.MisfitError as misfit:
        raise UserError(
            f"model {name!r} does not take the data set's inputs of shape {external.spelled(input_shape)} "
            f"({misfit}); {_fitting(input_shape)}"
        ) from misfit


def _fitting(input_shape: Shape) -> str:
    fitting = sorted(name for name, (_, shape) in MODELS.items() if shape in (None, input_shape))
    return f"choose one that fits: {', '.join(fitting)}"
