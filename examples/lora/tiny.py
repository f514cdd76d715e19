"""A tiny language model of bytes with random weights, its adapter, and the texts of each client."""

from pydoc_data.topics import topics

import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, set_seed

CONTEXT = 64


def model():
    set_seed(0)  # the same frozen weights on each machine
    config = GPT2Config(
        vocab_size=256,
        n_positions=CONTEXT,
        n_embd=64,
        n_layer=2,
        n_head=4,
        initializer_range=0.2,
        bos_token_id=0,
        eos_token_id=0,
        loss_type="ForCausalLMLoss",
    )
    adapter = LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["c_attn", "c_fc", "c_proj"], fan_in_fan_out=True)
    return get_peft_model(GPT2LMHeadModel(config), adapter)


def pieces(client_id, clients):
    names = sorted(topics)[client_id::clients]
    text = torch.frombuffer(bytearray("".join(map(topics.get, names)).encode()), dtype=torch.uint8).long()
    return [{"input_ids": piece, "labels": piece} for piece in text.unfold(0, CONTEXT, CONTEXT)]
