"""A Message-API app with batch normalisation, a mod, and a count of its trainings in `Context.state`."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(3, 2), nn.BatchNorm1d(2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(inputs))


def marked(message: Message, context: Context, call_next):
    reply = call_next(message, context)
    reply.content["metrics"]["marked"] = 1.0
    return reply


app = ClientApp(mods=[])


@app.train(mods=[marked])
def train(message: Message, context: Context) -> Message:
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    inputs = torch.randn(8, 3, generator=torch.Generator().manual_seed(context.node_config["partition-id"]))
    optimiser = torch.optim.SGD(net.parameters(), lr=message.content["config"]["lr"])
    for _ in range(context.run_config["local-steps"]):
        optimiser.zero_grad()
        loss = (net(inputs) - 1).abs().mean()
        loss.backward()
        optimiser.step()
    assert context.run_config["note.text"] == "kept"
    count = context.state["own"]["count"] + 1 if "own" in context.state else 1
    context.state["own"] = MetricRecord({"count": count})
    context.state["bytes"] = ConfigRecord({"blob": b"\x00\x01", "names": ["a", "b"]})
    context.state["arrays"] = ArrayRecord({"w": message.content["arrays"]["norm.weight"]})
    metrics = {
        "train_loss": loss.item(),
        "num-examples": 8,
        "count": count,
        "batches": int(net.norm.num_batches_tracked),
    }
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    examples = context.node_config["partition-id"] + 1
    count = context.state["own"]["count"] if "own" in context.state else 0
    metrics = MetricRecord({"eval_loss": 0.5, "count": count, "own": float(examples), "num-examples": examples})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)
