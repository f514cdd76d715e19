"""The model as a file that others can open: safetensors, one tensor a parameter or float buffer, under the module's own
names, so that `load_state_dict` takes it.
"""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from safetensors import torch as safetensors
from torch import Tensor

from unstale.errors import UserError
from unstale.flat import FlatModel, float_buffers


def check_writable(path: Path) -> None:
    """Raise UserError now rather than after a run when a model could not be written there."""
    try:
        is_something_else = path.exists() and not path.is_file()
        if is_something_else or not path.parent.is_dir():
            raise UserError(
                f"save_model is {str(path)!r}, expected the name of a file in a folder that exists"
            )
        _write(path, b"", keep=False)
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from None


def save(
    path: Path,
    model: FlatModel,
    model_d: Tensor,
    about: Mapping[str, str],
    *,
    buffers_b: Tensor | None = None,
) -> None:
    """Write a version of the model. model: gives names and shapes. model_d: [d] float32.

    buffers_b: [b] float32, the version's float buffers; None writes those that the model has.
    about: facts that are written beside it, such as the version and its digest. A file that is there stays whole until
    the new one is. Raises UserError when it cannot be written.
    """
    with model.using(model_d, buffers_b):
        tensors = (*model.module.named_parameters(), *float_buffers(model.module))
        # They are views into a vector; a file wants each to own its memory.
        owned = {name: tensor.detach().cpu().clone() for name, tensor in tensors}
    try:
        _write(path, safetensors.save(owned, metadata=dict(about)), keep=True)
    except OSError as error:
        raise _unwritable(path, error) from None


def _write(path: Path, content: bytes, *, keep: bool) -> None:
    """Write a file beside the one meant, and then, to `keep` it, put it in that one's place."""
    target = path.resolve()  # a link goes on pointing to it
    # In a folder of its own: a temporary file would be readable by its owner alone.
    with TemporaryDirectory(prefix=".unstale-", dir=target.parent) as folder:
        written = Path(folder) / target.name
        written.write_bytes(content)
        if keep:
            written.replace(target)


def _unwritable(path: Path, error: OSError | ValueError) -> UserError:
    why = (getattr(error, "strerror", None) or str(error)).lower()
    return UserError(f"save_model {str(path)!r} cannot be written ({why}); name a file where you may write")
