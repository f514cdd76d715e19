"""A `NumPyClient` whose `fit` moves the model by 1 and counts its trainings in `Context.state`."""

import time

import numpy as np
from flwr.app import ConfigRecord, Context
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp


def model():
    return [np.zeros(2), np.zeros(3, dtype=np.int64)]


class Counted(NumPyClient):
    def __init__(self, context: Context) -> None:
        self.context = context

    def fit(self, parameters, config):
        assert [array.dtype for array in parameters] == [np.float64, np.int64]
        time.sleep(self.context.run_config["pause-s"])
        state = self.context.state
        count = state["own"]["count"] + 1 if "own" in state else 1
        state["own"] = ConfigRecord({"count": count})
        assert parameters[1][0] == count - 1  # integer arrays stay with the client, and follow the verdicts as well
        return [parameters[0] + 1, parameters[1] + 1], 1, {"loss": float(count), "count": count}


app = ClientApp(client_fn=lambda context: Counted(context).to_client())
