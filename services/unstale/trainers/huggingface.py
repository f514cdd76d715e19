"""The Trainer of Hugging Face transformers."""

from typing import Any

from torch import Tensor
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState
from typing_extensions import override

from unstale.errors import UserError
from unstale.trainers.batches import examples_in
from unstale.trainers.model_sync import ModelSync


def attach(trainer: Trainer, sync: ModelSync) -> None:
    """Add the callback, and have each batch counted. Raises UserError."""
    if any(isinstance(callback, SyncCallback) for callback in trainer.callback_handler.callbacks):
        raise UserError("the trainer is patched already, expected one call of unstale.patch for each trainer")
    if trainer.model is not None:
        sync.check(trainer.model)
    callback = SyncCallback(sync)
    trainer.add_callback(callback)
    train = trainer.training_step

    def training_step(model: Any, inputs: Any, *arguments: Any, **named: Any) -> Tensor:
        examples = examples_in(inputs)
        loss: Tensor = train(model, inputs, *arguments, **named)
        callback.count(loss, examples)
        return loss

    trainer.training_step = training_step


class SyncCallback(TrainerCallback):  # type: ignore[misc]  # seen alike with the extra and without
    """Exchanges parameters after optimiser steps."""

    def __init__(self, sync: ModelSync) -> None:
        self._sync = sync
        self._loss: Tensor | float = 0.0
        self._examples = 0
        self._learning_rate: float | None = None

    def count(self, loss: Tensor, examples: int) -> None:
        """Count a batch of a step. loss: its part of the mean over the step."""
        self._loss = self._loss + loss.detach()
        self._examples += examples

    @override
    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **objects: Any) -> TrainerControl:
        self._loss, self._examples = 0.0, 0
        if not self._sync.start(objects["model"]):
            control.should_training_stop = True
        return control

    @override
    def on_optimizer_step(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        self._learning_rate = objects["optimizer"].param_groups[0]["lr"]  # before the schedule changes it

    @override
    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **objects: Any) -> TrainerControl:
        self._sync.record(self._loss, self._examples)
        self._loss, self._examples = 0.0, 0
        is_last = control.should_training_stop or state.global_step >= state.max_steps
        if not self._sync.step(self._learning_rate, is_last=is_last):
            control.should_training_stop = True
        return control

    @override
    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **objects: Any) -> None:
        self._sync.finish()
