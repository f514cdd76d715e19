"""A module of Lightning around the small regression; needs Lightning."""

from typing import Any

import lightning
import torch

from support.trained import Net


class Module(lightning.LightningModule):  # type: ignore[misc]
    """Trains a `Net` by AdamW, with a learning rate that falls with each step."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def training_step(self, batch: Any, _: int) -> Any:
        return self.net(**batch)["loss"]

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), 0.01)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
