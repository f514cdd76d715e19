"""The last linear layer of a model; its input is MOON's representation z.

Source: MOON (Li et al., CVPR 2021), docs/methods/training.md#moon

Legend: b examples of a mini-batch, f features, C classes.
"""

from collections.abc import Callable

from torch import Tensor, nn

from unstale.errors import UserError


def last_linear(module: nn.Module) -> tuple[str, nn.Linear]:
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
    _, linear = last_linear(module)

    def forward(inputs_bX: Tensor) -> tuple[Tensor, Tensor]:
        calls: list[tuple[Tensor, Tensor]] = []
        with linear.register_forward_hook(lambda _, inputs, output: calls.append((inputs[0], output))):
            logits_bC: Tensor = module(inputs_bX)
        if not calls or calls[-1][1].shape != logits_bC.shape:
            raise _no_last_linear()
        return logits_bC, calls[-1][0]

    return forward


def with_projection_head(module: nn.Module, classes: int, width: int) -> nn.Module:
    """The module with its last linear layer f -> C replaced by MOON's head: f -> f, ReLU, f -> width, width -> C.

    z has `width` numbers. An option of the released code. Raises UserError for a model that does not end in a linear
    layer.
    Source: MOON (Li et al., CVPR 2021), docs/methods/training.md#moon
    """
    name, linear = last_linear(module)
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
