"""The model as a safetensors file, with the names of `load_state_dict`: one tensor per parameter or float buffer."""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from safetensors import torch as safetensors
from torch import Tensor

from unstale.errors import UserError
from unstale.flat import FlatModel, float_buffers


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
    with model.using(model_d, buffers_b):
        tensors = (*model.module.named_parameters(), *float_buffers(model.module))
        # safetensors refuses views into one vector.
        owned = {name: tensor.detach().cpu().clone() for name, tensor in tensors}
    try:
        _write(path, safetensors.save(owned, metadata=dict(metadata)), keep=True)
    except OSError as error:
        raise _unwritable(path, error) from None


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
