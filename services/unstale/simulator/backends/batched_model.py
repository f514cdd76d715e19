"""A model as a function of the parameters of several clients, which are trained as one batch.

Legend: K clients, d parameters, X the shape of one example, b examples of a mini-batch, S steps, C classes, Y the
shape of a dropout's noise for one example.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.functional import dropout, dropout2d, log_softmax
from typing_extensions import override

from unstale.flat import FlatModel
from unstale.simulator.backends.product_conv2d import ProductConv2d
from unstale.training.datasets import Dataset
from unstale.training.initialise import draws, seeded
from unstale.training.models.networks import FirstConv2d
from unstale.training.objectives import Objective

Draw = Callable[[Tensor, float], Tensor]

IGNORED = -1
"""Label of an example that fills up a mini-batch."""

DRAWS: dict[type[nn.Module], Draw] = {nn.Dropout: dropout, nn.Dropout2d: dropout2d}
"""Layers whose noise is drawn before a step, as their forward pass draws it, and the functions that draw it."""


@dataclass(frozen=True, slots=True)
class NoiseLayer:
    """A dropout layer of the model."""

    name: str
    draw: Draw
    probability: float
    shape: tuple[int, ...]  # Y

    def drawn(self, examples: int, device: torch.device) -> Tensor:
        """The factors of the layer's input in a training pass, from the generator of the process. [b, *Y]"""
        return self.draw(torch.ones(examples, *self.shape, device=device), self.probability)


class BatchedModel:
    """Gradients of K clients at their own parameters.

    Attributes:
        parameters_d: Of the workspace, for the device and the number of parameters.
        noise_layers: Dropout layers, in the order of the forward pass.
        noise_numbers: Of all noise layers, for one example.
    """

    def __init__(self, model: FlatModel, objective: Objective, data: Dataset, *, fills_up: bool) -> None:
        """model: of `unsupported` None. fills_up: labels may be `IGNORED`, and convolutions are products of matrices.
        The objective is `classification` then.
        """
        self.noise_layers = _noise_layers(model, data.input_shape)
        self.noise_numbers = sum(prod(layer.shape) for layer in self.noise_layers)
        self.parameters_d = model.parameters_d
        self._named = model.parameters
        self._sizes = [parameter.numel() for _, parameter in self._named]
        self._loss_of = _cross_entropy if fills_up else objective.loss
        # As it is made here, no step copies a number to the device, which PyTorch's `cross_entropy` of a batch does.
        self._classes_C = torch.arange(data.classes, device=self.parameters_d.device) if fills_up else None
        self._module = model.module
        if fills_up or self.noise_layers:
            self._module = _replaced(deepcopy(model.module), as_products=fills_up)
        self._gradients: Callable[..., tuple[Tensor, Tensor]] = vmap(grad_and_value(self._loss))

    def begin(self) -> None:
        """Call before the first step of a local training: other computations may use the module in between."""
        self._module.train()

    def gradients(
        self, parameters_Kd: Tensor, inputs_KbX: Tensor, labels_Kb: Tensor, noise: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Gradients [K, d] and mean losses [K]. noise: of each noise layer, [K, b, *Y]."""
        targets = labels_Kb
        if self._classes_C is not None:
            targets = (labels_Kb.unsqueeze(2) == self._classes_C).to(parameters_Kd.dtype)
        return self._gradients(parameters_Kd, inputs_KbX, targets, tuple(noise))

    def drawn(self, seed: int | None, sizes: Sequence[int]) -> list[list[Tensor]]:
        """Noise of a task, by layer and step: [b, *Y]. seed: of the task. sizes: of its mini-batches."""
        device = self.parameters_d.device
        with seeded(seed, device):
            by_step = [[layer.drawn(size, device) for layer in self.noise_layers] for size in sizes]
        return [list(of_layer) for of_layer in zip(*by_step, strict=True)]

    def _loss(self, parameters_d: Tensor, inputs_bX: Tensor, targets: Tensor, noise: tuple[Tensor, ...]) -> Tensor:
        parts = zip(self._named, torch.split(parameters_d, self._sizes), strict=True)
        tensors = {name: part.view(like.shape) for (name, like), part in parts}
        tensors |= {f"{layer.name}.noise": one for layer, one in zip(self.noise_layers, noise, strict=True)}
        return self._loss_of(functional_call(self._module, tensors, inputs_bX), targets)


def unsupported(model: FlatModel, input_shape: Sequence[int]) -> str | None:
    """The kind of model that `BatchedModel` needs, where this one is of another kind; else None."""
    if model.buffers_b.numel():
        return "a model without buffers, such as BatchNorm's averages"
    if draws(model.module, besides=DRAWS):
        return "a model of known layers without random numbers other than dropout's"
    if len(_noise_layers(model, input_shape)) != sum(map(_draws, model.module.modules())):
        return "a model that uses each dropout layer once"
    return None


def _cross_entropy(logits_bC: Tensor, is_label_bC: Tensor) -> Tensor:
    """The mean over the examples that have a label. is_label_bC: 1 for the label, else 0."""
    return -(log_softmax(logits_bC, 1) * is_label_bC).sum() / is_label_bC.sum()


class _Noise(nn.Module):
    """A dropout layer whose noise is an argument of the model."""

    noise: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("noise", torch.ones(1))

    @override
    def forward(self, inputs_bY: Tensor) -> Tensor:
        return inputs_bY * self.noise


def _replaced(module: nn.Module, *, as_products: bool) -> nn.Module:
    """The module with layers in their batched forms."""
    if _draws(module):
        return _Noise()
    if as_products and type(module) in (nn.Conv2d, FirstConv2d):
        assert isinstance(module, nn.Conv2d)
        return ProductConv2d(module) if ProductConv2d.can_replace(module) else module
    for name, child in module.named_children():
        setattr(module, name, _replaced(child, as_products=as_products))
    return module


def _draws(layer: nn.Module) -> bool:
    return type(layer) in DRAWS and 0 < getattr(layer, "p", 0.0) < 1


@torch.no_grad()
def _noise_layers(model: FlatModel, input_shape: Sequence[int]) -> list[NoiseLayer]:
    """Dropout layers in the order of a forward pass; a layer that is used twice is there twice."""
    layers: list[NoiseLayer] = []
    handles = []
    for name, layer in model.module.named_modules():
        if _draws(layer):

            def note(layer: nn.Module, inputs: tuple[Tensor, ...], name: str = name) -> None:
                assert isinstance(layer, nn.Dropout | nn.Dropout2d)
                shape = tuple(inputs[0].shape[1:])
                if isinstance(layer, nn.Dropout2d):
                    shape = (shape[0], *(1 for _ in shape[1:]))
                layers.append(NoiseLayer(name, DRAWS[type(layer)], layer.p, shape))

            handles.append(layer.register_forward_pre_hook(note))
    if handles:
        with seeded(0, model.parameters_d.device):
            model.module.train()
            model.module(torch.zeros(1, *input_shape, device=model.parameters_d.device))
    for handle in handles:
        handle.remove()
    return layers
