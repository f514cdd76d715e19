"""Training where data changes: on the examples of the base version of the task."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.parts_of_runs import sgd
from unstale.flat import FlatModel
from unstale.seeds import Stream, stream
from unstale.training import models
from unstale.training.datasets import Dataset, load, varied
from unstale.training.local import LocalTask
from unstale.training.partition import VariantStream
from unstale.training.trainer import Trainer

RATE = 2.5
DIGITS = load("digits")
DATA = varied(DIGITS, DIGITS, rate=RATE, normalise="standard")
"""Digits that give way to other digits."""

SHARES = np.array_split(stream(0, Stream.PARTITION).permutation(len(DATA.train.labels_N)), 5)
CHANGES = VariantStream(SHARES, DATA.train.labels_N.numpy(), DIGITS.train.labels_N.numpy(), rate=RATE, seed=0)


def a_trainer() -> Trainer:
    model = FlatModel(models.build("logreg", DATA.input_shape, DATA.classes, seed=0))
    return Trainer(DATA, SHARES, model, sgd(steps=2), seed=0, changes=CHANGES)


def held_at(client_id: int, version: int) -> torch.Tensor:
    """The examples of the client, gathered anew in the obvious way."""
    together_NX = torch.cat([DATA.train_examples(), DATA.later_examples()])
    return together_NX[torch.from_numpy(CHANGES.indices(client_id, version))]


@settings(max_examples=25, deadline=None)
@given(asked=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 150)), min_size=1, max_size=12))
def test_the_examples_of_a_version_depend_on_no_earlier_version(asked):
    trainer = a_trainer()
    for client_id, version in asked:
        inputs_nX, labels_n = trainer.examples(client_id, version)
        assert torch.equal(inputs_nX, held_at(client_id, version))
        assert torch.equal(labels_n, DATA.train.labels_N[SHARES[client_id]])


def test_an_update_is_computed_on_the_data_of_its_base_version():
    trainer = a_trainer()
    base_d = FlatModel(models.build("logreg", DATA.input_shape, DATA.classes, seed=0)).parameters_d.clone()
    labels_n = DATA.train.labels_N[SHARES[3]]
    trainer.train(3, 6, base_d, 0.1, version=80)
    made = {version: trainer.train(3, 7, base_d, 0.1, version=version).vector_d for version in (90, 20)}
    for version, vector_d in made.items():
        task = LocalTask(
            base_d=base_d,
            learning_rate=0.1,
            batches=sgd(steps=2).batches(labels_n, stream(0, Stream.BATCHES, 3, 7)),
            seed=None,
        )
        model = FlatModel(models.build("logreg", DATA.input_shape, DATA.classes, seed=0))
        expected = sgd(steps=2).compute(model, held_at(3, version), labels_n, task)
        assert torch.equal(vector_d, expected.vector_d)
    assert not torch.equal(made[90], made[20])


def test_only_changed_examples_are_gathered(monkeypatch):
    gathered = []

    def watched(name):
        original = getattr(Dataset, name)

        def gather(self, indices_n=None):
            gathered.append((name, len(indices_n)))
            return original(self, indices_n)

        monkeypatch.setattr(Dataset, name, gather)

    watched("train_examples")
    watched("later_examples")
    trainer = a_trainer()
    for version in (0, 1, 1, 4, 2, 1000):
        trainer.examples(2, version)
    # floor(2.5 t): 0, 2, 2, 10, 5, and all of them.
    held = len(SHARES[2])
    assert gathered == [
        ("train_examples", held),
        ("later_examples", 2),
        ("later_examples", 8),
        ("train_examples", 5),
        ("later_examples", held - 5),
    ]


def test_a_missing_version_is_an_assertion():
    with pytest.raises(AssertionError, match="depends on the version"):
        a_trainer().examples(0)
