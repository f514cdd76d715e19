"""The same training as an app: for `unstale simulate`, and for the model of the server."""

import tiny
import torch

import unstale

STEPS, BATCH = 10, 16


def data(client):
    pieces = torch.stack([row["input_ids"] for row in tiny.pieces(client.client_id, client.clients)])
    return pieces[:-64], pieces[-64:]


def train(model, data, task):
    adapter = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(adapter, lr=task.learning_rate)
    if "adamw" in task.state:
        optimiser.load_state_dict(task.state["adamw"])
    for rows in torch.randint(len(data[0]), (STEPS, BATCH), generator=task.generator):
        loss = model(input_ids=data[0][rows], labels=data[0][rows]).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    task.state["adamw"] = optimiser.state_dict()
    return unstale.Trained(num_examples=STEPS * BATCH, loss=loss.item())


def evaluate(model, data):
    loss = model(input_ids=data[1], labels=data[1]).loss.item()
    return unstale.Measured(num_examples=len(data[1]), metrics={"loss": loss})


app = unstale.App(model=tiny.model, data=data, train=train, evaluate=evaluate)
