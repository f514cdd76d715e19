"""Models by name, built for a data set, and their last linear layer, whose input is MOON's representation z.

Source: docs/methods/models.md#models

Legend: b examples of a mini-batch, f features, C classes.
"""

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import partial

from torch import Tensor, nn

from unstale.errors import UserError, unknown_name
from unstale.plugins import GROUPS, is_built_in, is_code
from unstale.plugins import names as names_with_plug_ins
from unstale.training.initialise import seeded
from unstale.training.models import external, networks
from unstale.training.models.networks import Maker, Shape
from unstale.training.nests import Nest

__all__ = ["MODELS", "Shape", "Trial", "build", "build_without_data", "features", "find"]

MODELS: dict[str, tuple[Maker, Shape | None]] = {
    "celeba_cnn": (networks.celeba_cnn, (3, 84, 84)),
    "cnn3": (networks.cnn3, (1, 28, 28)),
    "digits_cnn": (networks.digits_cnn, (1, 8, 8)),
    "emnist_cnn": (networks.emnist_cnn, (1, 28, 28)),
    "lenet_28": (networks.lenet, (1, 28, 28)),
    "lenet_28_padded": (partial(networks.lenet, padding=2), (1, 28, 28)),
    "lenet_cifar": (networks.lenet, (3, 32, 32)),
    "lenet_gi": (networks.lenet_gi, (1, 28, 28)),
    "logreg": (networks.logreg, None),
    "resnet18": (partial(networks.resnet, widths=(64, 128, 256, 512), blocks=2), (3, 32, 32)),
    "resnet8": (partial(networks.resnet, widths=(16, 32, 64), blocks=1), (3, 32, 32)),
}
"""Factory and input shape (None: any) of each built-in model."""

Trial = tuple[Nest, Callable[[Nest], object]]
"""Inputs of at least two examples, and a check of a model's outputs for them, which raises UserError."""

NAMES = (*MODELS, f"{external.TORCHVISION}NAME", "package.module:factory")  # for people
_NORMED = ("resnet8", "resnet18")


def find(name: str, *, norm: str = "group", allow_factory: bool = True) -> tuple[Maker, Shape | None]:
    """Factory and input shape (None: any or unknown) of a model.

    norm: `group` or `batch`, for built-in ResNets. allow_factory: may import `package.module:factory`; never for a name
    from a server. Raises UserError for a name or norm that does not exist or is not allowed.
    """
    if norm not in networks.NORMS:
        raise unknown_name("model.norm", norm, networks.NORMS)
    if is_built_in("model", name, _NORMED):
        build_with: Callable[..., nn.Module] = MODELS[name][0]
        return partial(build_with, norm=norm), MODELS[name][1]
    if norm != "group":
        raise UserError(f"model.norm is {norm!r}, but model {name!r} leaves no choice; expected {' or '.join(_NORMED)}")
    if is_built_in("model", name, MODELS):
        return MODELS[name]
    if is_code("model", name):
        if not allow_factory:
            raise UserError(
                f"model {name!r} is code, which is not imported because another side names it; "
                "name it in this side's own configuration too, or choose a model that unstale has"
            )
        return external.factory(name), None
    if not name.startswith(external.TORCHVISION) and name not in external.torchvision_names():
        raise unknown_name("model", name, _similar(name) or NAMES)
    return external.torchvision_model(name.removeprefix(external.TORCHVISION)), None


def _similar(name: str) -> Sequence[str]:
    prefixed = [built_in for built_in in MODELS if built_in.startswith(name)]
    own = names_with_plug_ins(GROUPS["model"], MODELS, kind="model")
    return prefixed or get_close_matches(name, (*own, *external.torchvision_names()), n=1)


def build(
    name: str,
    input_shape: Shape,
    classes: int,
    seed: int,
    *,
    norm: str = "group",
    projection_head: int | None = None,
    allow_factory: bool = True,
    trial: Trial | None = None,
) -> nn.Module:
    """The model of a name, on the CPU, with parameters that depend on the seed only.

    input_shape: of one example. classes: number of outputs. projection_head: outputs of MOON's head; None for no head.
    trial: inputs, and a check of the outputs for them; None for logits of labelled data. Raises UserError for a name
    that `find` refuses, another input shape, and a model that cannot be trained here.
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
            if trial is not None:
                module = external.checked(name, module, *trial)
            elif name not in MODELS:
                module = external.checked(name, module, *external.classifies(name, input_shape, classes))
            if projection_head is not None:
                module = _with_projection_head(module, classes, projection_head)
            return module
    except external.MisfitError as misfit:
        if trial is not None:
            raise UserError(f"model {name!r} cannot be trained with the data set's examples ({misfit})") from misfit
        raise UserError(
            f"model {name!r} does not take the data set's inputs of shape {external.spelled(input_shape)} "
            f"({misfit}); {_fitting(input_shape)}"
        ) from misfit


def build_without_data(name: str, seed: int, *, allow_factory: bool = True) -> nn.Module:
    """The model of a factory that needs nothing of the data, as `build` makes it. Raises UserError for other models."""
    find(name, allow_factory=allow_factory)
    if not is_code("model", name):
        raise UserError(
            f"model.name is {name!r}, whose size depends on the data, but data.private keeps that from the server; "
            "expected package.module:factory that needs no arguments, or test data in data.name"
        )
    with seeded(seed):
        return external.without_data(name)


def _fitting(input_shape: Shape) -> str:
    fitting = sorted(name for name, (_, shape) in MODELS.items() if shape in (None, input_shape))
    return f"choose one that fits: {', '.join(fitting)}"


def _last_linear(module: nn.Module) -> tuple[str, nn.Linear]:
    """The dotted name and the last linear layer that the module lists. Raises UserError without one."""
    layers = [(name, part) for name, part in module.named_modules() if isinstance(part, nn.Linear)]
    if not layers:
        raise _no_last_linear()
    return layers[-1]


def features(module: nn.Module) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """A forward pass that returns the logits [b, C] and z [b, f], the input of the last linear layer.

    Both belong to the graph, so a loss over z has gradients in the parameters before that layer. For `logreg` z is the
    flattened input: a loss over it has no gradient. Raises UserError for a model without a linear layer; the forward
    pass raises it if the last one does not return the logits.
    """
    _, linear = _last_linear(module)

    def forward(inputs_bX: Tensor) -> tuple[Tensor, Tensor]:
        calls: list[tuple[Tensor, Tensor]] = []
        with linear.register_forward_hook(lambda _, inputs, output: calls.append((inputs[0], output))):
            logits_bC: Tensor = module(inputs_bX)
        if not calls or calls[-1][1].shape != logits_bC.shape:
            raise _no_last_linear()
        return logits_bC, calls[-1][0]

    return forward


def _with_projection_head(module: nn.Module, classes: int, width: int) -> nn.Module:
    """The module with its last linear layer f -> C replaced by MOON's head: f -> f, ReLU, f -> width, width -> C.

    z has `width` numbers. An option of the released code. Raises UserError for a model that does not end in a linear
    layer.
    Source: MOON (Li et al., CVPR 2021), docs/methods/training.md#moon
    """
    name, linear = _last_linear(module)
    if linear.out_features != classes:
        raise _no_last_linear()
    width_in = linear.in_features
    layers = (nn.Linear(width_in, width_in), nn.ReLU(), nn.Linear(width_in, width), nn.Linear(width, classes))
    head = nn.Sequential(*layers)
    if not name:
        return head
    parent, _, own = name.rpartition(".")
    setattr(module.get_submodule(parent), own, head)
    return module


def _no_last_linear() -> UserError:
    return UserError(
        "the model does not end in a linear layer, which MOON and projection_head need; "
        "choose one that does, such as lenet_cifar"
    )
