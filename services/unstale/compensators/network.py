"""A model as a function of its parameters, and the simplified local update LU of gradient inversion: the update that a
client with these data sends.

Legend: d parameters, b examples of one pass, r reconstructed examples, C classes.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.nn.functional import binary_cross_entropy_with_logits, log_softmax, softmax
from torch.nn.modules.batchnorm import _BatchNorm

from unstale.errors import UserError

Parts = tuple[Tensor, ...]
"""A vector [d] as tensors with the shapes of the parameters, in the vector's order."""


class Network:
    """The module in evaluation mode: without dropout, with its own buffers, and with parameters that are arguments.

    Others may use the module outside of `in_use`. input_shape: of one example, channels first. classes: C.
    """

    def __init__(self, module: nn.Module, input_shape: Sequence[int], classes: int) -> None:
        self._module = module
        self.input_shape = tuple(input_shape)
        self.classes = classes
        self._shapes = {
            name: parameter.shape for name, parameter in module.named_parameters() if parameter.requires_grad
        }
        self._sizes = [shape.numel() for shape in self._shapes.values()]
        self.dimension = sum(self._sizes)

    def parts(self, vector_d: Tensor) -> Parts:
        """Views of a vector. vector_d: [..., d]; each part keeps the leading dimensions."""
        lead = vector_d.shape[:-1]
        return tuple(
            part.view(*lead, *shape)
            for part, shape in zip(torch.split(vector_d, self._sizes, dim=-1), self._shapes.values(), strict=True)
        )

    def logits(self, parameters: Parts, inputs_bX: Tensor) -> Tensor:
        """[b, C]. inputs_bX: [b, *input_shape]. Only within `in_use`."""
        named = dict(zip(self._shapes, parameters, strict=True))
        result: Tensor = functional_call(self._module, named, (inputs_bX,))
        return result

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """The module is in evaluation mode inside the block."""
        was_training = self._module.training
        self._module.eval()
        try:
            yield
        finally:
            self._module.train(was_training)

    @property
    def bias_of_logits(self) -> int | None:
        """Index of the part that is the bias of the logits: the last one, if it has a number for each class."""
        last = len(self._shapes) - 1
        return last if tuple(list(self._shapes.values())[last]) == (self.classes,) else None

    def check_invertible(self, name: str) -> None:
        """Raise UserError if updates of this model cannot be inverted. name: of the model, for the message."""
        for path, part in self._module.named_modules():
            if isinstance(part, _BatchNorm):
                raise UserError(
                    f"model.name {name!r} has a layer of BatchNorm ({path}), whose updates depend on statistics of "
                    "the client's batches, expected a model without for gradient inversion; use model.norm group, or "
                    "compensator.name first-order"
                )
        try:
            self._differentiate_twice()
        except (RuntimeError, NotImplementedError) as error:
            reason = str(error).partition("\n")[0]
            raise UserError(
                f"model.name {name!r} has a layer that cannot be differentiated twice ({reason}), expected one that "
                "can for gradient inversion; use compensator.name first-order"
            ) from None

    def _differentiate_twice(self) -> None:
        generator = torch.Generator().manual_seed(0)
        device = next(self._module.parameters()).device
        vector_d = (torch.rand(self.dimension, generator=generator) - 0.5).to(device)
        inputs_bX = torch.rand(1, *self.input_shape, generator=generator).to(device)

        def length(inputs: Tensor) -> Tensor:
            slope = torch.func.grad(lambda parts: self.logits(parts, inputs).square().sum())(self.parts(vector_d))
            return sum((part.square().sum() for part in slope), torch.zeros((), device=device))

        with self.in_use(), torch.enable_grad():
            torch.func.vmap(torch.func.grad(length))(inputs_bX[None])
            # torch.func treats a second derivative that a function forbids as 0; `backward` raises.
            parts = self.parts(vector_d.requires_grad_())
            value = self.logits(parts, inputs_bX.requires_grad_()).square().sum()
            slopes = torch.autograd.grad(value, parts, create_graph=True, materialize_grads=True)
            torch.stack([slope.square().sum() for slope in slopes]).sum().backward()  # type: ignore[no-untyped-call]


LabelLoss = Callable[[Tensor, Tensor], Tensor]
"""(logits of the model [r, C], label logits [r, C]) -> mean loss over the r examples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSteps:
    """How clients train, as full-batch steps.

    Source: Gradient inversion (Wang & Gao, 2023), docs/methods/compensators.md#gradient-inversion
    """

    # k or E of a task; neither for the gradient of one mini-batch
    steps: int | None = None
    epochs: int | None = None
    batch_size: int = 1  # B
    # of the clients
    momentum: float = 0.0
    weight_decay: float = 0.0
    mu: float = 0.0  # FedProx's
    unknown: str | None = None  # name of a local training that full-batch steps cannot express; else None

    def of(self, num_examples: int, local_rate: float) -> tuple[int, float]:
        """kg and eta_gi. An epoch is one step, with the rates of its mini-batch steps added up."""
        if self.epochs is not None:
            return self.epochs, local_rate * ceil(num_examples / self.batch_size)
        return self.steps or 1, local_rate

    def check_known(self, purpose: str) -> None:
        """Raise UserError if full-batch steps cannot express the training. purpose: needs them, for the message."""
        if self.unknown is not None:
            raise UserError(
                f"training.name is {self.unknown!r}, whose updates depend on more than model and data, "
                f"expected sgd, gradient or fedprox for {purpose}"
            )

    def reach(self, steps: int) -> float:
        """How many gradients a local update of so many steps adds up to, if all are equal."""
        velocity = total = 0.0
        for _ in range(steps):
            velocity = self.momentum * velocity + 1
            total += velocity
        return total


def soft(logits_rC: Tensor, labels_rC: Tensor) -> Tensor:
    """Cross-entropy against softmax(labels)."""
    return -(softmax(labels_rC, -1) * log_softmax(logits_rC, -1)).sum(-1).mean()


def bce_raw(logits_rC: Tensor, labels_rC: Tensor) -> Tensor:
    """The loss of the released code: BCE-with-logits on log-softmax outputs, with raw labels as targets."""
    return binary_cross_entropy_with_logits(log_softmax(logits_rC, -1), labels_rC)


LABEL_LOSSES: dict[str, LabelLoss] = {"soft": soft, "bce-raw": bce_raw}


def local_update(
    network: Network,
    start: Parts,
    inputs_rX: Tensor,
    labels_rC: Tensor,
    rate: Tensor,
    *,
    steps: int,
    like: LocalSteps,
    loss: LabelLoss,
) -> Parts:
    """LU(w; x, l) = w - w_end after full-batch steps from w, a function of all its tensors:

        h <- grad(w) + weight_decay * w + mu * (w - w_start)
        z <- momentum * z + h (z = h at first);   w <- w - rate * z

    start: w. inputs_rX: x. labels_rC: l, label logits. rate: eta_gi, a scalar.
    Source: Gradient inversion (Wang & Gao, 2023), docs/methods/compensators.md#gradient-inversion
    """
    gradient_of = grad(lambda parameters: loss(network.logits(parameters, inputs_rX), labels_rC))
    now, velocity = start, None
    for _ in range(steps):
        gradient = gradient_of(now)
        if like.weight_decay:
            gradient = _plus(gradient, like.weight_decay, now)
        if like.mu:
            gradient = _plus(gradient, like.mu, _minus(now, start))
        if velocity is not None and like.momentum:
            gradient = tuple(like.momentum * z + h for z, h in zip(velocity, gradient, strict=True))
        velocity = gradient
        now = tuple(w - rate * z for w, z in zip(now, velocity, strict=True))
    return _minus(start, now)


def _plus(parts: Parts, factor: float, others: Parts) -> Parts:
    return tuple(part + factor * other for part, other in zip(parts, others, strict=True))


def _minus(parts: Parts, others: Parts) -> Parts:
    return tuple(part - other for part, other in zip(parts, others, strict=True))


def as_vector(parts: Parts) -> Tensor:
    """The vector [d] of parts."""
    return torch.cat([part.flatten() for part in parts])
