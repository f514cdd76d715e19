"""The model as a file that others can open: safetensors, one tensor a parameter, under the module's own names."""

from collections.abc import Mapping
from pathlib import Path

from safetensors import torch as safetensors
from torch import Tensor

from unstale.errors import UserError
from unstale.flat import FlatModel


def check_writable(path: Path) -> None:
    """Raise UserError now rather than after a run when a model could not be written there."""
    if path.is_dir() or not path.parent.is_dir():
        raise UserError(f"save_model is {str(path)!r}, expected the name of a file in a folder that exists")


def save(path: Path, model: FlatModel, model_d: Tensor, about: Mapping[str, str]) -> None:
    """Write a version of the model. model: gives names and shapes, and is overwritten. model_d: [d] float32.

    about: facts that are written beside it, such as the version and its digest.
    """
    model.load(model_d)
    tensors = {name: parameter.detach().cpu() for name, parameter in model.module.named_parameters()}
    # Parameters are views into one vector; a file wants each to own its memory.
    owned = {name: tensor.clone() for name, tensor in tensors.items()}
    path.write_bytes(safetensors.save(owned, metadata=dict(about)))
