"""The model as a safetensors file, with the names of `load_state_dict`: one tensor per parameter or float buffer."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors import SafetensorError, safe_open
from safetensors import torch as safetensors
from torch import Tensor, nn

from unstale.errors import UserError
from unstale.flat import EXCHANGED, FlatModel, float_buffers

BUFFERS = "buffers"
"""Key of the metadata with the names of the tensors that are buffers, as JSON."""

_BUFFERS = ("running_mean", "running_var")
"""Last parts of the names of buffers in files without such metadata: all float buffers of PyTorch's own layers."""


def check_writable(path: Path) -> None:
    """Raise UserError if `save` could not write to the path; a run calls it at its start. Changes no file."""
    try:
        is_no_file = path.exists() and not path.is_file()
        if is_no_file or not path.parent.is_dir():
            raise UserError(f"save_model is {str(path)!r}, expected the name of a file in a folder that exists")
        _write(path, b"", keep=False)
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from None


def save(
    path: Path, model: FlatModel, model_d: Tensor, metadata: Mapping[str, str], *, buffers_b: Tensor | None = None
) -> None:
    """Write a version of the model, which replaces an existing file atomically. Raises UserError if that fails.

    metadata: such as the version and its digest. buffers_b: [b] float32; None for the present buffers of `model`.
    """
    try:
        _write(path, safetensors.save(state(model, model_d, buffers_b), metadata=dict(metadata)), keep=True)
    except OSError as error:
        raise _unwritable(path, error) from None


def state(model: FlatModel, model_d: Tensor, buffers_b: Tensor | None = None) -> dict[str, Tensor]:
    """The exchanged tensors of a version by name, on the CPU, each with memory of its own. Arguments as for `save`."""
    with model.using(model_d, buffers_b):
        return {name: tensor.detach().cpu().clone() for name, tensor in (*model.parameters, *model.buffers)}


def module_of(path: Path) -> nn.Module:
    """A module with the float tensors of a file, which computes nothing. Raises UserError."""
    tensors, metadata = _read(path)
    buffers = {*json.loads(metadata.get(BUFFERS, "[]"))}
    module = nn.Module()
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            continue
        if tensor.dtype not in EXCHANGED:
            raise UserError(
                f"initial {str(path)!r} has {name!r} of {tensor.dtype}, expected float32, float16 or bfloat16"
            )
        try:
            _add(module, name, tensor, buffers)
        except KeyError as error:
            raise UserError(f"initial {str(path)!r} has {name!r}, which no module can have ({error})") from None
    if not any(True for _ in module.parameters()):
        raise UserError(f"initial {str(path)!r} has no float tensors, expected the parameters of a model")
    return module


def _add(module: nn.Module, name: str, tensor: Tensor, buffers: Collection[str]) -> None:
    """Add a tensor to a module, or to a part of it that the name says. Raises KeyError for an impossible name."""
    *owners, last = name.split(".")
    for owner in owners:
        if owner not in dict(module.named_children()):
            module.add_module(owner, nn.Module())
        module = module.get_submodule(owner)
    if name in buffers or last in _BUFFERS:
        module.register_buffer(last, tensor)
    else:
        module.register_parameter(last, nn.Parameter(tensor))


@torch.no_grad()
def load_into(module: nn.Module, names: Collection[str], path: Path) -> None:
    """Read tensors of a module from a file. Raises UserError for a file that does not have all names, or others."""
    tensors, _ = _read(path)
    own = dict(module.named_parameters()) | dict(float_buffers(module))
    every = {*own, *dict(module.named_buffers())}
    for name in names:
        if name not in tensors or tensors[name].shape != own[name].shape:
            shape = f"shape {list(tensors[name].shape)} for" if name in tensors else "no"
            raise UserError(
                f"initial {str(path)!r} has {shape} {name!r}, expected shape {list(own[name].shape)} of the app's model"
            )
    for name in tensors:
        if name not in every:
            raise UserError(f"initial {str(path)!r} has {name!r}, which the app's model does not have; leave it out")
    for name in names:
        own[name].copy_(tensors[name])


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a file by name, and its metadata. Raises UserError."""
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"initial {str(path)!r} cannot be read ({' '.join(str(error).split()).lower()}), expected a safetensors "
            "file"
        ) from None


def _write(path: Path, content: bytes, *, keep: bool) -> None:
    """Write a temporary file beside the path, and move it to the path if `keep`."""
    target = path.resolve()  # a symbolic link stays
    # A file of `tempfile` would have mode 0600; a file in a temporary folder has the usual mode.
    with TemporaryDirectory(prefix=".unstale-", dir=target.parent) as folder:
        file = Path(folder) / target.name
        file.write_bytes(content)
        if keep:
            file.replace(target)


def _unwritable(path: Path, error: OSError | ValueError) -> UserError:
    why = (getattr(error, "strerror", None) or str(error)).lower()
    return UserError(f"save_model {str(path)!r} cannot be written ({why}); name a file where you may write")
