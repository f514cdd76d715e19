"""The Trainer of Lightning."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import override

from unstale.errors import UserError
from unstale.trainers.batches import examples_in
from unstale.trainers.model_sync import ModelSync


def attach(trainer: Trainer, sync: ModelSync) -> None:
    """Add the callback. Raises UserError."""
    if any(isinstance(callback, SyncCallback) for callback in trainer.callbacks):
        raise UserError("the trainer is patched already, expected one call of unstale.patch for each trainer")
    trainer.callbacks.insert(0, SyncCallback(sync))  # before those that store checkpoints


class SyncCallback(Callback):  # type: ignore[misc]  # seen alike with the extra and without
    """Exchanges parameters after optimiser steps."""

    def __init__(self, sync: ModelSync) -> None:
        self._sync = sync
        self._steps = 0
        self._steps_max = float("inf")
        self._learning_rate: float | None = None

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._steps, self._steps_max = trainer.global_step, trainer.estimated_stepping_batches
        if not self._sync.start(pl_module):
            trainer.should_stop = True

    @override
    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        self._learning_rate = optimizer.param_groups[0]["lr"]  # before the schedule changes it

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if loss is not None:
            self._sync.record(loss * trainer.accumulate_grad_batches, examples_in(batch))  # Lightning divides by them
        if trainer.global_step == self._steps:
            return  # gradients accumulate
        self._steps = trainer.global_step
        is_last = trainer.should_stop or self._steps >= self._steps_max
        if not self._sync.step(self._learning_rate, is_last=is_last):
            trainer.should_stop = True

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._sync.finish()
