"""A client with `join` that trains by halving; `--fault NAME` breaks one rule."""

import argparse
import time
from typing import Any
from unittest import mock

from unstale_client import join
from unstale_client.net.clock import RunClock
from unstale_client.residuals import Residuals
from unstale_proto import encodings, transfer
from unstale_proto.messages import Credit

clock = RunClock()
parser = argparse.ArgumentParser()
for name in ("address", "client-id", "folder"):
    parser.add_argument(f"--{name}", required=True)
parser.add_argument("--key")
parser.add_argument("--fault", default="")
given = parser.parse_args()


def break_method(owner: type, name: str, wrong: Any) -> None:
    """Replace a method. wrong: takes the replaced one, then its arguments."""
    right = getattr(owner, name)
    mock.patch.object(owner, name, lambda *arguments, **named: wrong(right, *arguments, **named)).start()


def changed(credit: Credit, **fields: Any) -> Credit:
    return credit.model_copy(update=fields)


if given.fault == "asks-from-zero":
    break_method(transfer.Receiving, "ask", lambda right, self: changed(right(self), have=0))
elif given.fault == "sends-past-credit":
    break_method(
        transfer.Sending,
        "credited",
        lambda right, self, credit: right(self, changed(credit, until=max(credit.until, credit.have + 1) + 100_000)),
    )
elif given.fault == "ignores-again":
    break_method(transfer.Sending, "credited", lambda right, self, credit: right(self, changed(credit, again=None)))
elif given.fault == "follows-overtaken":
    break_method(transfer.Sending, "credited", lambda right, self, credit: right(self, changed(credit, again=True)))
elif given.fault == "coarse-bfloat16":
    break_method(encodings.BFloat16, "_codes", lambda right, self, numbers: right(self, numbers) & 0xFFF0)
elif given.fault == "adds-rejected":
    break_method(Residuals, "settle", lambda right, self, *of, accepted: right(self, *of, accepted=True))
state_dir = None if given.fault == "forgets" else given.folder
key = None if given.fault == "no-key" else given.key

with join(given.address, client_id=int(given.client_id), state_dir=state_dir, key=key) as client:
    for task in client:
        end_s = clock() + float(task.settings["train_s"])
        while clock() < end_s and task.is_wanted:
            time.sleep(0.02)
        task.send({name: array / 2 for name, array in task.parameters.items()}, num_examples=4, steps=1, loss=0.5)
