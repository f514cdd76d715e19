"""Training loops of a user's own in real runs, over sockets."""

import asyncio
import sqlite3
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from join.numpy_client import trained
from support.processes import Process, free_port
from support.running import PATIENCE_S, RunningServer, small, until
from unstale.coordinator import events
from unstale.net import keygen
from unstale.net.authorized_keys import ClientIds
from unstale.training.datasets import load
from unstale_client import Client, UserError, join

pytestmark = pytest.mark.network

ANY_NUMBER = {"num_examples_max": None}  # of examples: the server knows of no partition of theirs
SGD = {"name": "sgd", "learning_rate": 0.25, "batch_size": 8, "steps": 1}


def shifted(task: Any, by: float) -> dict[str, np.ndarray]:
    return {name: array - np.float32(by) for name, array in task.parameters.items()}


def rows(run: Path, query: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(run / "run.db") as stored:
        found = stored.execute(query).fetchall()
    stored.close()
    return found


def saved(folder: Path, **tensors: torch.Tensor) -> Path:
    path = folder / "model.safetensors"
    save_file(tensors, path)
    return path


def take_part(address: str, client_id: int, inputs_NX: np.ndarray, labels_N: np.ndarray) -> None:
    with join(address, client_id=client_id, patience_s=PATIENCE_S) as client:
        for task in client:
            weights, loss = trained(task.parameters, inputs_NX, labels_N, task.learning_rate, steps=5)
            task.send(weights, num_examples=len(labels_N), loss=loss, steps=5)


def test_logistic_regression_in_numpy_learns_digits_from_three_clients(tmp_path: Path) -> None:
    digits, port = load("digits"), free_port()
    inputs_NX = digits.train_examples().numpy().reshape(len(digits.train), -1)
    labels_N = digits.train.labels_N.numpy()
    command = [
        *("server", "--json", "--address", f"tcp://127.0.0.1:{port}", "--run", str(tmp_path / "run")),
        *("--server.http-address", "null", "--server.num-examples-max", "null", "--clients", "3"),
        *("--rounds", "40", "--trigger", "sync", "--policy", "fedavg", "--model", "logreg", "--data", "digits"),
        *("--training", "sgd", "--training.learning-rate", "0.5"),
    ]
    with Process(*command) as server:
        server.fact()  # it has started
        address = f"tcp://127.0.0.1:{port}"
        threads = [
            threading.Thread(target=take_part, args=(address, number, inputs_NX[number::3], labels_N[number::3]))
            for number in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert server.end() == 0
    ((version, accuracy),) = rows(
        tmp_path / "run", "SELECT version, accuracy FROM evaluations ORDER BY version DESC LIMIT 1"
    )
    assert version == 40
    assert accuracy > 0.85  # the same training reaches 0.9 in one process
    assert rows(tmp_path / "run", "SELECT client_id, count(*) FROM updates WHERE reason IS NULL GROUP BY 1") == [
        (0, 40), (1, 40), (2, 40),
    ]  # fmt: skip


def test_the_model_moves_by_the_updates_that_were_sent() -> None:
    seen = []
    with RunningServer(small(clients=1, rounds=4, training=SGD, server=ANY_NUMBER)) as server:
        with join(server.address, client_id=0) as client:
            for task in client:
                seen.append(task.parameters["1.bias"].copy())
                task.send(shifted(task, 0.5), num_examples=1000, loss=1.0)
        assert server.end().updates["accepted"] == 4
    # Each round applies one update, and the server's rate is that of the clients.
    for before, after in pairwise(seen):
        assert np.allclose(before - after, 0.5, atol=1e-6)


@pytest.mark.parametrize(
    "changes",
    [
        {"encoding": {"updates": "int8", "models": "bfloat16"}},
        {"encoding": {"updates": "top-k", "fraction": 0.1}},
        {"model": {"name": "support.factories:with_buffers"}},
        {"training": {**SGD, "name": "gradient"}},
    ],
    ids=["int8", "top-k", "buffers", "gradient"],
)
def test_a_run_with_other_payloads_accepts_every_update(changes: dict[str, Any], tmp_path: Path) -> None:
    training = {key: value for key, value in SGD.items() if key != "steps"}
    changes = {"training": SGD, **changes}
    if changes["training"]["name"] == "gradient":
        changes["training"] = {**training, "name": "gradient"}
    with RunningServer(small(clients=1, rounds=5, server=ANY_NUMBER, **changes)) as server:
        with join(server.address, client_id=0, state_dir=tmp_path) as client:
            for task in client:
                task.send(shifted(task, 0.5), num_examples=1000, loss=1.0)
        assert server.end().updates == {"accepted": 5, "duplicate": 0, "rejected": 0}
    assert not list(tmp_path.glob("*.update")) and not list(tmp_path.glob("*.state"))


def test_a_model_and_its_updates_of_8_mib_go_in_chunks(tmp_path: Path) -> None:
    settings = small(
        clients=1,
        rounds=2,
        training=SGD,
        model={"name": "support.factories:wide"},
        server={**ANY_NUMBER, "linger_s": 5},
    )
    with RunningServer(settings) as server:
        with join(server.address, client_id=0, state_dir=tmp_path) as client:
            for task in client:
                task.send(shifted(task, 0.5), num_examples=1000, loss=1.0)
        assert server.end().updates == {"accepted": 2, "duplicate": 0, "rejected": 0}


def test_a_declined_task_is_no_update_and_a_forgotten_one_is_declined(tmp_path: Path) -> None:
    run = {"directory": str(tmp_path / "run")}
    with RunningServer(small(clients=1, rounds=4, training=SGD, run=run, server=ANY_NUMBER)) as server:
        with join(server.address, client_id=0) as client:
            for task in client:
                if task.number == 0:
                    task.decline("battery")
                elif task.number != 2:
                    task.send(shifted(task, 0.5), num_examples=1000, loss=1.0)
        assert server.end().updates == {"accepted": 2, "duplicate": 0, "rejected": 0}
    declined = rows(tmp_path / "run", "SELECT count(*) FROM events WHERE kind = 'TaskDeclined'")
    assert declined == [(2,)]


def test_a_key_is_shown_and_the_wrong_one_is_one_sentence(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keygen.create(keys, "server", None)
    keygen.create(keys, "laptop", ClientIds.parse("0", "--clients"))
    keygen.create(keys, "phone", ClientIds.parse("1", "--clients"))
    settings = small(clients=2, min_clients=1, rounds=2, training=SGD, server={**ANY_NUMBER, "keys": str(keys)})
    with RunningServer(settings) as server:
        with (
            join(server.address, client_id=0, key=keys / "phone.key_secret") as client,
            pytest.raises(UserError, match="refuses client 0: the key of this connection does not own client 0"),
        ):
            next(client)
        with (
            join(server.address, client_id=0) as client,
            pytest.raises(UserError, match="requires a key; set key, see unstale keys"),
        ):
            next(client)
        with join(server.address, client_id=0, key=keys / "laptop.key_secret") as client:
            for task in client:
                task.send(shifted(task, 0.5), num_examples=1000, loss=1.0)
        assert server.end().updates["accepted"] == 2


def test_a_client_that_the_run_does_not_have_is_refused() -> None:
    with (
        RunningServer(small(clients=1)) as server,
        join(server.address, client_id=1) as client,
        pytest.raises(UserError, match=r"^the server refuses client 1: "),
    ):
        next(client)


def test_private_data_of_any_number_metrics_and_settings_take_part_with_a_server_of_defaults(tmp_path: Path) -> None:
    """`server.num_examples_max` is "partition", and the server knows no partition of private data."""
    run = tmp_path / "run"
    settings = small(
        clients=1,
        rounds=9,
        training={"learning_rate": 0.5},
        model={"name": "app"},
        partition={},
        initial=str(saved(tmp_path, weight=torch.zeros(2, 3), bias=torch.zeros(2))),
        client_settings={"step": 0.5},
        run={"directory": str(run), "until": "mae < 0.2"},
    )
    with RunningServer(settings) as server:
        with join(server.address, client_id=0) as client:
            for task in client:
                mae = 1 - 0.25 * task.number  # 0.0 with the fifth update
                delta = {
                    name: np.full(array.shape, task.settings["step"], "f4") for name, array in task.parameters.items()
                }
                task.send_delta(delta, num_examples=10**6 + task.number, loss=1.0, metrics={"mae": mae})
        outcome = server.end()
    assert (outcome.reason, outcome.versions) == ("reached", 5)
    assert rows(run, "SELECT num_examples, metrics FROM updates ORDER BY seq")[:2] == [
        (10**6, '{"mae":1.0}'), (10**6 + 1, '{"mae":0.75}'),
    ]  # fmt: skip


def test_a_coroutine_waits_for_tasks_in_another_thread() -> None:
    """As the guide says."""

    async def take_part_in(address: str) -> int:
        with join(address, client_id=0) as client:
            sent = 0
            while (task := await asyncio.to_thread(next, client, None)) is not None:
                task.send(shifted(task, 0.5), num_examples=1000, loss=1.0)
                sent += 1
        return sent

    with RunningServer(small(clients=1, rounds=3, training=SGD, server=ANY_NUMBER)) as server:
        assert asyncio.run(take_part_in(server.address)) == 3


def test_a_run_whose_clients_exchange_a_second_vector_is_one_sentence() -> None:
    scaffold = {"policy": {"name": "scaffold"}, "training": {**SGD, "name": "scaffold"}}
    with (
        RunningServer(small(clients=1, trigger={"name": "sync"}, **scaffold)) as server,
        join(server.address, client_id=0) as client,
        pytest.raises(UserError, match="exchange a second vector, for scaffold, which join does not support"),
    ):
        next(client)


def test_no_server_is_one_sentence_after_the_patience_of_the_user() -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    with (
        join(address, client_id=0, patience_s=0.2) as client,
        pytest.raises(UserError, match=rf"^no server answered at {address} for 0.2 s; start it, or check address$"),
    ):
        next(client)


def test_a_folder_is_for_one_process_a_client(tmp_path: Path) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    own = tmp_path / "plain"
    own.write_text("")
    with pytest.raises(UserError, match=r"^cannot use state_dir "), join(address, client_id=0, state_dir=own):
        pass


def test_an_update_left_behind_is_sent_by_the_next_process_and_counts_once(tmp_path: Path) -> None:
    run, state = tmp_path / "run", tmp_path / "state"
    settings = small(clients=1, rounds=3, training=SGD, run={"directory": str(run)}, server=ANY_NUMBER)
    with RunningServer(settings) as server:
        for _ in range(2):
            with join(server.address, client_id=0, state_dir=state) as client:
                task = next(client)
                task.send(shifted(task, 0.5), num_examples=1000, loss=1.0)  # and leaves before the ack may have come
        with join(server.address, client_id=0, state_dir=state) as client:
            for task in client:
                task.send(shifted(task, 0.5), num_examples=1000, loss=1.0)
        assert server.end().versions == 3
    assert rows(run, "SELECT count(*), count(DISTINCT task_id), count(reason) FROM updates") == [(3, 3, 0)]


def test_an_error_of_the_training_leaves_the_run_and_goes_on_to_the_user() -> None:
    seen: list[events.Event] = []
    settings = small(clients=1, training=SGD, server=ANY_NUMBER)
    with RunningServer(settings, observe=lambda event, _: seen.append(event)) as server:

        def fail(client: Client) -> None:
            for task in client:
                raise ZeroDivisionError(task.number)

        with pytest.raises(ZeroDivisionError), join(server.address, client_id=0) as client:
            fail(client)
        until(lambda: any(isinstance(event, events.ClientLeft) for event in seen))
    raised, left = [event for event in seen if isinstance(event, events.TaskRaised | events.ClientLeft)]
    assert isinstance(raised, events.TaskRaised) and isinstance(left, events.ClientLeft)


def test_a_client_that_is_not_entered_says_how() -> None:
    client = join("tcp://127.0.0.1:9", client_id=0)
    with pytest.raises(UserError, match="not connected; use `with join"):
        next(client)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"address": "127.0.0.1:5555"}, "address is '127.0.0.1:5555', expected tcp://HOST:PORT"),
        ({"client_id": -1}, "client_id is -1, expected a whole number from 0 to 999999"),
        ({"client_id": "3"}, "client_id is '3', expected a whole number from 0 to 999999"),
        ({"patience_s": 0}, "patience_s is 0, expected seconds up to 604800, or None"),
        ({"patience_s": "soon"}, "patience_s is 'soon', expected a number"),
        ({"address": "tcp://server:5555"}, "address is 'tcp://server:5555', on another machine, expected key too, or "),
        ({"server_key": "server.key"}, "server_key is 'server.key', expected key too"),
        ({"key": "no.key_secret"}, "key 'no.key_secret' does not exist, expected a file NAME.key_secret of "),
    ],
)
def test_arguments_that_do_not_fit_are_one_sentence(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        join(**{"address": "tcp://127.0.0.1:9", "client_id": 0, **arguments})
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
