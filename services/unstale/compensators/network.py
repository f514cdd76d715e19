"""A model as a function of its parameters, twice differentiable and computable for several at a time.

Legend: d parameters, b examples of one pass, C classes.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call
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
        self._shapes = {name: parameter.shape for name, parameter in module.named_parameters()}
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
