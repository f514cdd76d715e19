"""A transformer that predicts the next byte of Python's own documentation, of which each client has other topics."""

import math
from pydoc_data.topics import topics

import torch
from torch import nn

import unstale

CONTEXT, BATCH, STEPS = 64, 16, 10


class Transformer(nn.Module):
    def __init__(self, width=64, layers=2):
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(CONTEXT, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.last = nn.Linear(width, 256)

    def forward(self, pieces):
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT)
        inputs = self.bytes(pieces) + self.places.weight
        return self.last(self.layers(inputs, mask, is_causal=True)).transpose(1, 2)


def data(client):
    names = sorted(topics)[client.client_id :: client.clients]
    text = torch.frombuffer(bytearray("".join(map(topics.get, names)).encode()), dtype=torch.uint8).long()
    return text[: len(text) * 9 // 10], text[len(text) * 9 // 10 :].unfold(0, CONTEXT + 1, CONTEXT)[:64]


def loss_of(model, pieces):
    return nn.functional.cross_entropy(model(pieces[:, :-1]), pieces[:, 1:])


def train(model, data, task):
    optimiser = torch.optim.Adam(model.parameters(), lr=task.learning_rate)
    if "adam" in task.state:
        optimiser.load_state_dict(task.state["adam"])
    for starts in torch.randint(len(data[0]) - CONTEXT, (STEPS, BATCH), generator=task.generator):
        optimiser.zero_grad()
        loss = loss_of(model, data[0].unfold(0, CONTEXT + 1, 1)[starts])
        loss.backward()
        optimiser.step()
    task.state["adam"] = optimiser.state_dict()
    return unstale.Trained(num_examples=STEPS * BATCH, loss=loss.item())


def evaluate(model, data):
    loss = loss_of(model, data[1]).item()
    return unstale.Measured(num_examples=len(data[1]), metrics={"perplexity": math.exp(loss), "loss": loss})


app = unstale.App(model=Transformer, data=data, train=train, evaluate=evaluate, metric="perplexity")
