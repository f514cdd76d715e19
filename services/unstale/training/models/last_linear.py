"""The last linear layer of a model: what goes into it is MOON's representation z.

Source: MOON (Li et al., CVPR 2021), docs/methods/training.md#moon

Legend: b examples of a mini-batch, f features, C classes.
"""

from collections.abc import Callable

from torch import Tensor, nn

from unstale.errors import UserError


def last_linear(module: nn.Module) -> tuple[str, nn.Linear]:
    """The name, dots between its parts, and the layer: the last one that the module lists.

    Raises UserError where there is none.
    """
    found = [(name, part) for name, part in module.named_modules() if isinstance(part, nn.Linear)]
    if not found:
        raise _no_last_linear()
    return found[-1]


def features(module: nn.Module) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """A forward pass that gives the logits [b, C] and z [b, f], the input of the last linear layer.

    Both belong to the graph, so a loss over z reaches the parameters before that layer. For `logreg` z is the
    flattened input, which no parameter changes: a loss over it has no gradient. Raises UserError for a model that
    ends in no linear layer: here where it has none, at the first pass where its last one gives no logits.
    """
    _, linear = last_linear(module)

    def forward(inputs_bX: Tensor) -> tuple[Tensor, Tensor]:
        seen: list[tuple[Tensor, Tensor]] = []
        with linear.register_forward_hook(lambda _, inputs, output: seen.append((inputs[0], output))):
            logits_bC: Tensor = module(inputs_bX)
        if not seen or seen[-1][1].shape != logits_bC.shape:
            raise _no_last_linear()
        return logits_bC, seen[-1][0]

    return forward


def with_projection_head(module: nn.Module, classes: int, width: int) -> nn.Module:
    """The module with its last linear layer f -> C replaced by MOON's head: f -> f, ReLU, f -> width, width -> C.

    So z has `width` numbers. It is an option of the released code. Raises UserError for a model that ends in no
    linear layer.
    Source: MOON (Li et al., CVPR 2021), docs/methods/training.md#moon
    """
    name, linear = last_linear(module)
    if linear.out_features != classes:
        raise _no_last_linear()
    held = linear.in_features
    head = nn.Sequential(
        *(nn.Linear(held, held), nn.ReLU(), nn.Linear(held, width)), nn.Linear(width, classes)
    )
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
