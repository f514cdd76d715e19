"""Trains the same model on all topics in one place, to compare with: `python central.py`."""

from types import SimpleNamespace

import torch
from transformer import app

CLIENTS = 4


def perplexity(tasks=400, learning_rate=0.003):
    """Mean over the texts that the clients keep for their evaluations, after as many tasks as all clients have."""
    torch.manual_seed(0)
    texts, tests = zip(*(app.data(SimpleNamespace(client_id=i, clients=CLIENTS)) for i in range(CLIENTS)), strict=True)
    module, state = app.model(), {}
    for number in range(tasks):
        generator = torch.Generator().manual_seed(number)
        task = SimpleNamespace(learning_rate=learning_rate, generator=generator, state=state)
        app.train(module, (torch.cat(texts), None), task)
    with torch.no_grad():
        return sum(app.evaluate(module, (None, test)).metrics["perplexity"] for test in tests) / CLIENTS


if __name__ == "__main__":
    print(f"perplexity {perplexity():.2f}")
