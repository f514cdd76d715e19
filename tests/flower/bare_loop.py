"""Federated averaging of `apps/norm.py` by hand: a call of the app for each client, and a mean in NumPy.

python bare_loop.py ROUNDS CLIENTS LR: prints the last model as JSON.
"""

import json
import sys

import norm
import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, Metadata, RecordDict

from unstale.training.initialise import seeded

rounds, clients, rate = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
torch.set_num_threads(1)
with seeded(0):
    model = {name: tensor.numpy() for name, tensor in norm.Net().state_dict().items()}
contexts = [
    Context(1, client, {"partition-id": client}, RecordDict(), {"local-steps": 2, "note.text": "kept"})
    for client in range(clients)
]
own = [model["norm.num_batches_tracked"]] * clients
for number in range(rounds):
    replies = []
    for client, context in enumerate(contexts):
        sent = {**model, "norm.num_batches_tracked": own[client]}
        record = ArrayRecord({name: Array(np.asarray(array)) for name, array in sent.items()})
        content = RecordDict({"arrays": record, "config": ConfigRecord({"lr": rate})})
        metadata = Metadata(1, f"{number}-{client}", 1, client, "", "", 1.0, 1e12, "train")
        reply = norm.app(Message(content=content, metadata=metadata), context)
        replies.append({name: array.numpy() for name, array in reply.content["arrays"].items()})
        own[client] = replies[-1]["norm.num_batches_tracked"]
    for name in model:
        if name != "norm.num_batches_tracked":
            model[name] = np.mean([reply[name] for reply in replies], axis=0)
print(json.dumps({name: model[name].tolist() for name in model if name != "norm.num_batches_tracked"}))
