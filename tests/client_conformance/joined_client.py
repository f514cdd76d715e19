"""A client with `join` that trains by halving: what `unstale conformance --client` examines in its own tests."""

import argparse
import time

from unstale_client import join

parser = argparse.ArgumentParser()
for name in ("address", "client-id", "folder"):
    parser.add_argument(f"--{name}", required=True)
parser.add_argument("--key")
given = parser.parse_args()

with join(given.address, client_id=int(given.client_id), state_dir=given.folder, key=given.key) as client:
    for task in client:
        end_s = time.monotonic() + float(task.settings["train_s"])
        while time.monotonic() < end_s and task.is_wanted:
            time.sleep(0.02)
        task.send({name: array / 2 for name, array in task.parameters.items()}, num_examples=4, steps=1, loss=0.5)
