from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from support.parts_of_runs import scaffold, sgd
from unstale.flat import FlatModel
from unstale.seeds import Stream, stream
from unstale.training.datasets import Dataset, Split
from unstale.training.local import LocalTask
from unstale.training.trainer import Trainer

ETA = 0.5
CLIENTS = 2
# Two clients of two examples each: inputs of two numbers, three classes.
INPUTS_NnX = [[[1.0, 2.0], [-1.0, 0.5]], [[0.5, -1.5], [2.0, 1.0]]]
LABELS_Nn = [[0, 1], [2, 1]]


def rng():
    return stream(0, Stream.BATCHES, 0, 0)


def logreg() -> FlatModel:
    return FlatModel(nn.Linear(2, 3, bias=False))


def gradient_6(weights_6, inputs_n2, labels_n, weight_decay):
    """Of the mean cross-entropy and weight decay, in float64: the mean of (softmax(W x) - onehot(y)) x^T, + decay W."""
    gradient_32 = np.zeros((3, 2))
    for inputs_2, label in zip(inputs_n2, labels_n, strict=True):
        logits_3 = weights_6.reshape(3, 2) @ np.array(inputs_2)
        shares_3 = np.exp(logits_3) / np.exp(logits_3).sum()
        shares_3[label] -= 1
        gradient_32 += np.outer(shares_3, inputs_2) / len(labels_n)
    return gradient_32.flatten() + weight_decay * weights_6


def test_two_clients_and_two_rounds_against_the_equations_in_float64():
    # 2.6, k = 3 steps, all of a client's examples in each mini-batch; the server: w - mean u, c + (1/N) sum dc.
    steps, weight_decay = 3, 0.1
    start_6 = np.array([0.1, -0.2, 0.3, 0.0, 0.5, -0.4], dtype=np.float32).astype(np.float64)
    w_6, c_6, c_N6 = start_6.copy(), np.zeros(6), np.zeros((CLIENTS, 6))
    training = scaffold(batch_size=2, steps=steps, weight_decay=weight_decay)
    states: list[dict[str, torch.Tensor]] = [{}, {}]
    for _ in range(2):
        u_N6, dc_N6 = np.zeros((CLIENTS, 6)), np.zeros((CLIENTS, 6))
        for i in range(CLIENTS):
            y_6 = w_6.copy()
            for _ in range(steps):
                y_6 = y_6 - ETA * (gradient_6(y_6, INPUTS_NnX[i], LABELS_Nn[i], weight_decay) - c_N6[i] + c_6)
            u_N6[i] = w_6 - y_6
            dc_N6[i] = u_N6[i] / (steps * ETA) - c_6

            inputs_n2, labels_n = torch.tensor(INPUTS_NnX[i]), torch.tensor(LABELS_Nn[i])
            task = LocalTask(
                base_d=torch.from_numpy(w_6).float(),
                learning_rate=ETA,
                batches=training.batches(labels_n, rng()),
                seed=0,
                extra_d=torch.from_numpy(c_6).float(),
                state=states[i],
            )
            update = training.compute(logreg(), inputs_n2, labels_n, task)
            np.testing.assert_allclose(update.vector_d.numpy(), u_N6[i], atol=1e-6)
            np.testing.assert_allclose(update.extra_d.numpy(), dc_N6[i], atol=1e-6)
            states[i] = {key: change + states[i].get(key, torch.zeros(6)) for key, change in update.state.items()}
        c_N6 += dc_N6
        w_6 = w_6 - u_N6.mean(axis=0)
        c_6 = c_6 + dc_N6.sum(axis=0) / CLIENTS
    for i in range(CLIENTS):
        np.testing.assert_allclose(states[i]["control_d"].numpy(), c_N6[i], atol=1e-6)


def test_without_controls_it_is_sgd_to_the_bit_and_its_control_is_the_mean_gradient():
    model = logreg()
    inputs_n2, labels_n = torch.tensor(INPUTS_NnX[0]), torch.tensor(LABELS_Nn[0])
    base_d = torch.full((6,), 0.1)

    batches = sgd(batch_size=1, steps=4).batches(labels_n, rng())
    task = LocalTask(base_d=base_d, learning_rate=ETA, batches=batches, seed=0, extra_d=torch.zeros(6))
    ours = scaffold(batch_size=1, steps=4).compute(model, inputs_n2, labels_n, task)
    theirs = sgd(batch_size=1, steps=4).compute(model, inputs_n2, labels_n, task)
    assert torch.equal(ours.vector_d, theirs.vector_d)
    torch.testing.assert_close(ours.extra_d, theirs.vector_d / (4 * ETA))


def test_a_client_whose_control_equals_the_servers_follows_sgd():
    model = logreg()
    inputs_n2, labels_n = torch.tensor(INPUTS_NnX[1]), torch.tensor(LABELS_Nn[1])
    control_d = torch.tensor([0.5, -0.25, 1.0, 0.0, 2.0, -1.0])

    batches = sgd(steps=3).batches(labels_n, rng())
    task = LocalTask(base_d=torch.zeros(6), learning_rate=ETA, batches=batches, seed=0, extra_d=control_d)
    kept = replace(task, state={"control_d": control_d})
    ours = scaffold(steps=3).compute(model, inputs_n2, labels_n, kept)
    assert torch.equal(ours.vector_d, sgd(steps=3).compute(model, inputs_n2, labels_n, task).vector_d)


def test_it_does_not_train_without_the_servers_control():
    batches = scaffold(steps=1).batches(torch.tensor([0]), rng())
    task = LocalTask(base_d=torch.zeros(6), learning_rate=ETA, batches=batches, seed=0)
    with pytest.raises(AssertionError, match="control variate"):
        scaffold(steps=1).compute(logreg(), torch.ones(1, 2), torch.tensor([0]), task)


def a_trainer() -> Trainer:
    inputs_N2 = torch.tensor(INPUTS_NnX).flatten(0, 1)
    split = Split(stored_NX=inputs_N2, labels_N=torch.tensor(LABELS_Nn).flatten())
    dataset = Dataset(name="four", classes=3, train=split, test=split)
    shares = [np.array([0, 1]), np.array([2, 3])]
    return Trainer(dataset, shares, logreg(), scaffold(steps=2, batch_size=1), seed=0)


@given(
    tasks=st.lists(st.tuples(st.integers(0, CLIENTS - 1), st.booleans(), st.integers(1, 3)), min_size=1, max_size=12)
)
@settings(deadline=None)
def test_accepted_changes_add_up_to_the_servers_control(tasks):
    # Sum over clients of c_i = sum of the accepted dc_i = N * (c - c_0), in whatever order the verdicts come: each
    # task is (client, accepted, how many tasks of all clients later its verdict comes).
    trainer, base_d, c_d = a_trainer(), torch.zeros(6), torch.zeros(6)
    verdicts: list[tuple[int, int, int, bool, torch.Tensor]] = []
    for number, (client_id, accepted, later) in enumerate(tasks):
        update = trainer.train(client_id, number, base_d, ETA, extra_d=c_d)
        verdicts.append((number + later, client_id, number, accepted, update.extra_d))
        for _, client, task_number, counted, change_d in [due for due in verdicts if due[0] <= number + 1]:
            if counted:
                trainer.keep(client, task_number)
                c_d = c_d + change_d / CLIENTS
            else:
                trainer.drop(client, task_number)
        verdicts = [due for due in verdicts if due[0] > number + 1]
        kept_d = sum((trainer.kept(i).get("control_d", torch.zeros(6)) for i in range(CLIENTS)), torch.zeros(6))
        torch.testing.assert_close(kept_d, CLIENTS * c_d, rtol=1e-4, atol=1e-5)
