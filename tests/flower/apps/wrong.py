"""Apps whose trainings fail, each in its own way."""

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp


def model():
    return {"w": np.zeros(2, dtype=np.float32)}


def _app(answer):
    app = ClientApp()
    app.train()(lambda message, context: Message(content=RecordDict(answer(message)), reply_to=message))
    return app


def _raise(message):
    raise KeyError("no such file")


METRICS = MetricRecord({"num-examples": 1})
raises = _app(_raise)
empty = _app(lambda message: {"metrics": METRICS})
shape = _app(lambda message: {"arrays": ArrayRecord({"w": _array(3)}), "metrics": METRICS})
name = _app(lambda message: {"arrays": ArrayRecord({"v": _array(2)}), "metrics": METRICS})
examples = _app(lambda message: {"arrays": ArrayRecord({"w": _array(2)})})
no_model = ClientApp()


def _array(size):
    from flwr.app import Array

    return Array(np.ones(size, dtype=np.float32))
