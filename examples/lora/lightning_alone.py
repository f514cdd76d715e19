"""Trains the adapter with Lightning, on the texts of one client."""

import lightning
import tiny
import torch
from torch.utils.data import DataLoader


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = tiny.model()

    def training_step(self, batch, _):
        return self.model(**batch).loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 0.01)


if __name__ == "__main__":
    loader = DataLoader(tiny.pieces(0, 2), batch_size=16, shuffle=True)
    trainer = lightning.Trainer(max_steps=2000)
    trainer.fit(Module(), loader)
