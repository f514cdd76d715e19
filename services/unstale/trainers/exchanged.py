"""The parameters of a local model that a client exchanges, and the check that the server exchanges the same ones."""

import sys
from collections.abc import Mapping
from typing import Any, Literal, get_args

from torch import Tensor, nn

from unstale.errors import UserError
from unstale.flat import EXCHANGED

Choice = Literal["adapter", "trainable", "all"]


def check_choice(params: object) -> None:
    """Raises UserError for an unknown choice."""
    if params not in get_args(Choice):
        raise UserError(f"params is {params!r}, expected 'adapter', 'trainable' or 'all'")


def chosen(model: nn.Module, params: Choice) -> dict[str, nn.Parameter]:
    """Parameters by their names in the model. Raises UserError."""
    every = dict(model.named_parameters())
    names = _adapter_names(model) if params == "adapter" else every.keys()
    parameters = {name: one for name, one in every.items() if name in names and (params == "all" or one.requires_grad)}
    if not parameters:
        raise UserError(f"params is {params!r}, which no parameter of the model is, expected some with requires_grad")
    for name, parameter in parameters.items():
        if parameter.dtype not in EXCHANGED:
            raise UserError(
                f"the parameter {name!r} is {parameter.dtype}, expected float32, float16 or bfloat16; choose "
                "params='adapter' or 'trainable' to leave frozen ones out"
            )
    return parameters


def _adapter_names(model: nn.Module) -> set[str]:
    """Names of the active adapter's parameters, those that PEFT stores. Raises UserError."""
    peft: Any = sys.modules.get("peft")  # a model with adapters has imported it
    owner: Any = next((module for module in model.modules() if getattr(module, "peft_config", None)), None)
    if peft is None or owner is None:
        raise UserError(
            "params is 'adapter', and the model has no adapter, expected a model of peft.get_peft_model; or choose "
            "params='trainable'"
        )
    active = owner.active_adapter if isinstance(owner, peft.PeftModel) else "default"
    stored = peft.get_peft_model_state_dict(owner, adapter_name=active, save_embedding_layers=False)
    addresses = {tensor.data_ptr() for tensor in stored.values()}
    return {name for name, parameter in model.named_parameters() if parameter.data_ptr() in addresses}


def check_same(ours: Mapping[str, Tensor], theirs: Mapping[str, Any], source: str) -> None:
    """Raises UserError, which names the first tensor that differs.

    Args:
        ours: Of the local model.
        theirs: Of the server, arrays.
        source: Of the local tensors, for the error message.
    """
    for name, array in theirs.items():
        if name not in ours:
            raise UserError(f"the server exchanges {name!r}, expected {source}, of which the first is {_first(ours)}")
        if tuple(ours[name].shape) != array.shape:
            raise UserError(
                f"the server exchanges {name!r} of shape {list(array.shape)}, expected {list(ours[name].shape)} as in "
                "the model of this client"
            )
    for name in ours:
        if name not in theirs:
            raise UserError(
                f"the server does not exchange {name!r}, expected all {len(ours)} of {source}; give it the same model"
            )


def _first(tensors: Mapping[str, Tensor]) -> str:
    return repr(next(iter(tensors), None))
