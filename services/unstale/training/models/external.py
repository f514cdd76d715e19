"""torchvision's image classifiers and factories of the user, and checks that their models can be trained here.

Legend: b examples of a mini-batch, X the shape of one example, C classes.
"""

import inspect
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import batch_norm

from unstale.errors import UserError, unknown_name
from unstale.flat import float_buffers
from unstale.plugins import object_of
from unstale.training.models.networks import Maker, Shape
from unstale.training.nests import Nest

TORCHVISION = "torchvision."

_SETTINGS: dict[str, dict[str, bool]] = {  # one output instead of several; no warning about a default
    "googlenet": {"aux_logits": False, "init_weights": True},
    "inception_v3": {"aux_logits": False, "init_weights": True},
}


def torchvision_names() -> list[str]:
    """The names of torchvision's image classifiers. Slow: imports torchvision."""
    from torchvision import models

    return list(models.list_models(module=models))


def torchvision_model(name: str) -> Maker:
    """A factory of torchvision's model of this name, without the prefix, initialised without pretrained weights.

    Raises UserError for an unknown name and a model that does not classify images. The factory raises MisfitError for
    data that are not images of three channels.
    """
    from torchvision import models

    if name not in torchvision_names():
        if name in models.list_models():
            raise UserError(
                f"model {TORCHVISION + name!r} does not classify images; "
                f"expected a model that does, such as {TORCHVISION}mobilenet_v2"
            )
        raise unknown_name("torchvision model", name, torchvision_names())

    def make(input_shape: Shape, classes: int) -> nn.Module:
        if len(input_shape) != 3 or input_shape[0] != 3:
            raise MisfitError("it takes images of three channels")
        module: nn.Module = models.get_model(name, weights=None, num_classes=classes, **_SETTINGS.get(name, {}))
        return module

    return make


def factory(name: str) -> Maker:
    """The factory of a user, whose exceptions are not caught. Raises UserError for a name of something else."""
    user_factory = _factory_of(name)

    def make(input_shape: Shape, classes: int) -> nn.Module:
        signature = inspect.signature(user_factory)
        try:
            bound = signature.bind(input_shape=input_shape, classes=classes)
        except TypeError:  # other names of the parameters, or none
            bound = _bound(name, signature, input_shape, classes)
        return _module(name, user_factory(*bound.args, **bound.kwargs))

    return make


def without_data(name: str) -> nn.Module:
    """The model of a factory of a user, called without arguments, if it can be a flat model.

    Raises UserError for a factory that needs arguments, and for unsuitable parameters and buffers.
    """
    user_factory = _factory_of(name)
    signature = inspect.signature(user_factory)
    try:
        signature.bind()
    except TypeError:
        raise UserError(
            f"model {name!r} takes {signature}, but data.private keeps the data from the server; expected a function "
            "that needs no arguments"
        ) from None
    module = _module(name, user_factory())
    _check_tensors(name, module)
    return module


def _factory_of(name: str) -> Callable[..., object]:
    """The function or class that a name of code names, or one that copies the module that it names."""
    thing = object_of("model", name)
    if isinstance(thing, nn.Module):
        return lambda: deepcopy(thing)
    if not callable(thing):
        raise UserError(f"model {name!r} is of type {type(thing).__name__}, expected a function or a torch.nn.Module")
    return thing  # type: ignore[no-any-return]


def _module(name: str, module: object) -> nn.Module:
    if not isinstance(module, nn.Module):
        raise UserError(f"model {name!r} made a value of type {type(module).__name__}, expected a torch.nn.Module")
    return module.cpu()


class MisfitError(Exception):
    """The model does not take the data set's inputs. The text says why."""


def _bound(name: str, signature: inspect.Signature, *arguments: object) -> inspect.BoundArguments:
    for given in (arguments, ()):
        try:
            return signature.bind(*given)
        except TypeError:
            continue
    raise UserError(f"model {name!r} takes {signature}, expected a function of (input_shape, classes), or of nothing")


def checked(name: str, module: nn.Module, inputs: Nest, check: Callable[[Nest], object]) -> nn.Module:
    """The module, if it computes with these inputs, at least two, gives valid outputs, and can be a flat model.

    check: of the outputs; raises UserError. Parameters and buffers stay unchanged. BatchNorm layers accept a single
    example from now on. Raises UserError for a wrong result or unsuitable parameters and buffers, and MisfitError if
    the module cannot compute.
    """
    _check_tensors(name, module)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
            part.forward = partial(_normalise, part)  # type: ignore[method-assign]
    buffers = {key: buffer.clone() for key, buffer in module.named_buffers()}
    after = dict(buffers)
    _trial_pass(module, after, inputs, check)
    for key, _ in float_buffers(module):
        if after[key] is not buffers[key]:
            raise UserError(
                f"model {name!r} puts a new tensor in place of its buffer {key!r}; expected it to be written to"
            )
    return module


def classifies(name: str, input_shape: Shape, classes: int) -> tuple[Tensor, Callable[[Nest], None]]:
    """Two inputs of a labelled data set, and the check that a model returns logits [2, C] for them."""

    def check(logits: Nest) -> None:
        if not isinstance(logits, Tensor) or logits.dtype != torch.float32 or logits.shape != (2, classes):
            described = f"a value of type {type(logits).__name__}"
            if isinstance(logits, Tensor):
                described = f"{_dtype(logits)} values of shape {spelled(tuple(logits.shape))}"
            raise UserError(
                f"model {name!r} gives {described} for two inputs of shape {spelled(input_shape)}, "
                f"expected float32 logits of shape 2x{classes}"
            )

    return torch.zeros(2, *input_shape), check


def _trial_pass(module: nn.Module, buffers: dict[str, Tensor], inputs: Nest, check: Callable[[Nest], object]) -> None:
    """Check the result for some inputs in training mode. Writes to these buffers instead of the module's."""
    was_training = module.training
    module.train()
    positional = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    named = dict(inputs) if isinstance(inputs, Mapping) else None
    try:
        with torch.no_grad():
            check(functional_call(module, buffers, positional if named is None else (), named))
    except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
        raise MisfitError((str(error).strip() or type(error).__name__).splitlines()[0]) from error
    finally:
        module.train(was_training)


def _check_tensors(name: str, module: nn.Module) -> None:
    parameters = [(key, tensor) for key, tensor in module.named_parameters() if tensor.requires_grad]
    for key, tensor in (*parameters, *float_buffers(module)):
        if tensor.dtype != torch.float32:
            raise UserError(f"model {name!r} holds {key!r} in {_dtype(tensor)}, expected float32 throughout")
    if not parameters:
        raise UserError(f"model {name!r} has no parameters with requires_grad, expected some to train")
    for key, part in module.named_modules():
        if getattr(part, "track_running_stats", False) and getattr(part, "momentum", 0.1) is None:
            raise UserError(
                f"model {name!r}: norm {key!r} has momentum None, whose weight depends on all batches seen before; "
                "expected a number, such as 0.1"
            )


def _normalise(norm: nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d, inputs: Tensor) -> Tensor:
    """BatchNorm; in evaluation mode for a batch with one value per channel, which has no variance.

    The last mini-batch of an epoch may be one example, and small images may have one pixel at this layer.
    """
    if norm.training and norm.track_running_stats and inputs.numel() == inputs.shape[1]:
        return batch_norm(inputs, norm.running_mean, norm.running_var, norm.weight, norm.bias, False, 0.0, norm.eps)
    return type(norm).forward(norm, inputs)


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def spelled(shape: Shape) -> str:
    """3x32x32"""
    return "x".join(str(size) for size in shape)
