"""`patch`: another library's trainer takes part in a run."""

from typing import Any

from unstale.errors import UserError
from unstale.trainers.exchanged import Choice
from unstale.trainers.model_sync import ModelSync
from unstale_client.client import Client

TRAINERS = "a transformers.Trainer, a lightning.Trainer or a lightning.Fabric"


def patch(trainer: Any, client: Client, *, params: Choice = "trainable", sync_every: int = 1) -> ModelSync:
    """Let a trainer train the tasks of a client.

    The parameters of a task are loaded before its steps, and their change is sent after `sync_every` optimiser steps.
    The end of the run ends the training. If the training ends first, its steps since the last exchange are sent.

    Args:
        trainer: A transformers.Trainer, a lightning.Trainer or a lightning.Fabric.
        client: Made by `unstale.join`, and entered by `with`.
        params: The parameters that are exchanged: the active adapter of PEFT, all with requires_grad, or all.
        sync_every: Optimiser steps of a task.

    Returns:
        What exchanges the parameters; the loop of a Fabric calls its `start`, `record`, `step` and `finish`.

    Raises:
        UserError: An argument is invalid, or the model has no such parameters.
    """
    sync = ModelSync(client, params, sync_every)
    kind = _kind(trainer)
    processes = trainer.args.world_size if kind == "transformers.Trainer" else trainer.world_size
    if processes != 1:
        raise UserError(f"the trainer has {processes} processes, expected 1: each process is a client of its own")
    if kind == "transformers.Trainer":
        from unstale.trainers import huggingface

        huggingface.attach(trainer, sync)
    elif kind == "lightning.Trainer":
        from unstale.trainers import lightning

        lightning.attach(trainer, sync)
    return sync


def _kind(trainer: Any) -> str:
    """The library and class of a trainer, without an import of either. Raises UserError."""
    for base in type(trainer).__mro__:
        kind = f"{base.__module__.partition('.')[0]}.{base.__name__}"
        if kind in ("transformers.Trainer", "lightning.Trainer", "lightning.Fabric"):
            return kind
    raise UserError(f"trainer is a {type(trainer).__name__}, expected {TRAINERS}")
