"""The same training in the simulator, which needs PyTorch for the model: `unstale simulate --app simulated:app`."""

import torch
from torch import nn
from tumours import accuracy, table, trained

import unstale


class Logistic(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(30)), nn.Parameter(torch.zeros(1))


def weights_of(model):
    return {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}


def train(model, data, task):
    weights, loss = trained(weights_of(model), *data[0], task.learning_rate)
    model.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
    return unstale.Trained(num_examples=len(data[0][1]), loss=loss)


def evaluate(model, data):
    return unstale.Measured(num_examples=len(data[1][1]), metrics={"accuracy": accuracy(weights_of(model), *data[1])})


app = unstale.App(
    model=Logistic,
    data=lambda client: table(f"data/{client.client_id}.csv"),
    train=train,
    evaluate=evaluate,
    metric="accuracy",
    higher_is_better=True,
)
