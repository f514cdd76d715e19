"""Trains the adapter with Hugging Face Trainer, on the texts of one client."""

import tiny
from transformers import Trainer, TrainingArguments

if __name__ == "__main__":
    arguments = TrainingArguments(
        "trained", max_steps=2000, per_device_train_batch_size=16, learning_rate=0.01, logging_steps=10, save_steps=100
    )
    trainer = Trainer(tiny.model(), arguments, train_dataset=tiny.pieces(0, 2))
    trainer.train()
