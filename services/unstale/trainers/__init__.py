"""Clients whose training loop belongs to another library: Hugging Face Trainer, Lightning and Fabric."""
