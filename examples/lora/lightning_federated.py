"""Trains the adapter with Lightning, as a client of a run: `python lightning_federated.py ADDRESS CLIENT_ID`."""

import sys

import lightning
import tiny
import torch
from torch.utils.data import DataLoader

import unstale


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = tiny.model()

    def training_step(self, batch, _):
        return self.model(**batch).loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 0.01)


if __name__ == "__main__":
    address, client_id = sys.argv[1], int(sys.argv[2])
    loader = DataLoader(tiny.pieces(client_id, 2), batch_size=16, shuffle=True)
    trainer = lightning.Trainer(max_steps=2000)
    with unstale.join(address, client_id=client_id, state_dir=f"state-{client_id}") as client:
        unstale.patch(trainer, client, params="adapter", sync_every=10)
        trainer.fit(Module(), loader)
