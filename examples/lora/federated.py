"""Trains the adapter with Hugging Face Trainer, as a client of a run: `python federated.py ADDRESS CLIENT_ID`."""

import sys

import tiny
from transformers import Trainer, TrainingArguments

import unstale

if __name__ == "__main__":
    address, client_id = sys.argv[1], int(sys.argv[2])
    arguments = TrainingArguments(
        "trained", max_steps=2000, per_device_train_batch_size=16, learning_rate=0.01, logging_steps=10, save_steps=100
    )
    trainer = Trainer(tiny.model(), arguments, train_dataset=tiny.pieces(client_id, 2))
    with unstale.join(address, client_id=client_id, state_dir=f"state-{client_id}") as client:
        unstale.patch(trainer, client, params="adapter", sync_every=10)
        trainer.train()
