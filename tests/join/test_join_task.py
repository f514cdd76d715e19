"""A task of `unstale_client.join`: arrays in, one update out, and one sentence for each mistake."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.wire import RUN, welcome
from unstale_client import Task, UserError, built_vectors, parameters
from unstale_client.client import _without_model
from unstale_client.handover import Handover
from unstale_client.jobs import Failed, Job, Ready, ReceivedModel, Result, Settlement
from unstale_client.outbox import Outbox
from unstale_proto import encodings, limits
from unstale_proto.encodings import TopK
from unstale_proto.errors import Reason
from unstale_proto.messages import EncodingPlan, TensorSpec, TrainingPlan, Welcome
from unstale_proto.messages import Task as TaskMessage

TENSORS = (TensorSpec(name="w", shape=(2, 3), dtype="float32"), TensorSpec(name="b", shape=(), dtype="float32"))
MEAN = TensorSpec(name="mean", shape=(2,), dtype="float32")
BASE_W, BASE_B = np.arange(6, dtype=np.float32).reshape(2, 3), np.float32(10)
GOOD = {"num_examples": 3, "loss": 0.5}


def told(**changes: Any) -> Welcome:
    return welcome().model_copy(update={"tensors": TENSORS, **changes})


def job_of(about: Welcome, number: int = 0, wanted: bool = True) -> Job:
    """A task whose model is 0 to 5, 10, and in the buffers, if there are any, 20 and 21."""
    numbers = [*range(6), 10, *([20, 21] if about.buffers else [])]
    payload = np.array(numbers, "<f4").tobytes()
    task = TaskMessage(
        task_id=number + 1, number=number, version=7, learning_rate=0.25, signature="0" * 64, payload_bytes=len(payload)
    )
    return Job(
        client_id=0, welcome=about, task=task, model=ReceivedModel([memoryview(payload)]), is_wanted=lambda: wanted
    )


class Taken:
    """A task as a user has it, and what the loop is told about it."""

    def __init__(
        self, about: Welcome, outbox: Outbox | None = None, *, wanted: bool = True, folder: Path | None = None
    ) -> None:
        self.results: list[Result] = []
        self.about = about
        self.handover = Handover(self.results.append, outbox)
        self.handover.submit(job_of(about, wanted=True))
        job = self.handover.next_job()
        assert job is not None
        self.task = Task(job if wanted else job_of(about, wanted=False), self.handover, folder)

    @property
    def ready(self) -> Ready:
        (result,) = self.results
        assert isinstance(result, Ready)
        return result

    def sent(self) -> list[float]:
        """The numbers in the payload of the update."""
        frames = encodings.of_update(self.about).decode(self.ready.pending.parcel)
        return np.concatenate([np.frombuffer(bytes(frame), "<f4") for frame in frames]).tolist()


def test_a_task_shows_the_model_by_name_and_shape_and_read_only() -> None:
    task = Taken(told(buffers=(MEAN,))).task
    assert (task.number, task.version, task.learning_rate) == (0, 7, 0.25)
    assert list(task.parameters) == ["w", "b"]
    assert task.parameters["w"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert task.parameters["b"].shape == () and task.parameters["b"] == 10
    assert {name: array.tolist() for name, array in task.buffers.items()} == {"mean": [20, 21]}
    assert {array.dtype for array in task.parameters.values()} == {np.dtype(np.float32)}
    with pytest.raises(ValueError, match="read-only"):
        task.parameters["w"][0] = 1.0  # the base of the update


def test_an_update_is_the_base_minus_the_trained_weights() -> None:
    taken = Taken(told())
    taken.task.send({"b": np.float32(12), "w": BASE_W - 0.5}, num_examples=3, loss=0.5, steps=4)
    assert taken.sent() == [0.5] * 6 + [-2]
    update = taken.ready.pending.update
    assert (update.task_id, update.base_version, update.kind, update.learning_rate) == (1, 7, "delta", 0.25)
    assert (update.num_examples, update.loss, update.steps, update.payload_bytes) == (3, 0.5, 4, 28)


@pytest.mark.parametrize("block", [1, 4, 100])
@pytest.mark.parametrize("training", ["sgd", "gradient"])
def test_an_update_in_a_file_is_the_update_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, training: str
) -> None:
    about = told(training=TrainingPlan(name=training, batch_size=8))
    weights = {"w": (BASE_W - np.float32(0.3))[::-1], "b": np.float32(10.7)}
    small = Taken(about)
    small.task.send(weights, **GOOD)
    monkeypatch.setattr(built_vectors, "FILE_BYTES", 28)
    monkeypatch.setattr(parameters, "BLOCK", block)
    large = Taken(about, folder=tmp_path)
    large.task.send(weights, **GOOD)
    assert large.sent() == small.sent()
    assert large.ready.pending.update == small.ready.pending.update


def test_a_delta_is_sent_as_it_is() -> None:
    taken = Taken(told())
    taken.task.send_delta({"w": np.full((2, 3), 0.5, np.float32), "b": np.float32(-2)}, **GOOD)
    assert taken.sent() == [0.5] * 6 + [-2]


def test_where_the_run_exchanges_gradients_the_update_is_divided_by_the_learning_rate() -> None:
    taken = Taken(told(training=TrainingPlan(name="gradient", batch_size=8)))
    taken.task.send({"w": BASE_W - 0.5, "b": np.float32(12)}, **GOOD)
    assert taken.sent() == [2] * 6 + [-8]
    assert taken.ready.pending.update.kind == "gradient"


def test_buffers_go_behind_the_update_changed_or_not() -> None:
    unchanged, changed = Taken(told(buffers=(MEAN,))), Taken(told(buffers=(MEAN,)))
    weights = {"w": BASE_W - 0.5, "b": BASE_B}
    unchanged.task.send(weights, **GOOD)
    changed.task.send(weights, buffers={"mean": np.float32([1, 2])}, **GOOD)
    assert unchanged.sent() == [0.5] * 6 + [0, 20, 21]
    assert changed.sent() == [0.5] * 6 + [0, 1, 2]


def test_metrics_go_with_the_update_and_their_absence_is_no_map() -> None:
    named, bare = Taken(told()), Taken(told())
    weights = {"w": BASE_W - 0.5, "b": BASE_B}
    named.task.send(weights, metrics={"mae": np.float32(0.25), "acc/top-5": 1}, **GOOD)
    bare.task.send_delta(weights, metrics={}, **GOOD)
    assert named.ready.pending.update.metrics == {"mae": 0.25, "acc/top-5": 1.0}
    assert bare.ready.pending.update.metrics is None


def test_the_settings_of_the_server_come_with_the_task_and_are_read_only() -> None:
    task = Taken(told(settings={"depth": 3, "optimiser": "adam"})).task
    assert dict(task.settings) == {"depth": 3, "optimiser": "adam"}
    with pytest.raises(TypeError):
        task.settings["depth"] = 4  # type: ignore[index]
    assert dict(Taken(told()).task.settings) == {}


def test_arrays_of_any_layout_and_numpy_numbers_are_taken() -> None:
    taken = Taken(told())
    weights = {"w": np.asfortranarray(BASE_W - 0.5), "b": np.float32(10)}
    taken.task.send(weights, num_examples=np.int64(3), loss=np.float32(0.5))
    assert taken.sent() == [0.5] * 6 + [0]


W, B = BASE_W - 0.5, BASE_B


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"w": W}, "weights lacks 'b', expected the 2 names of task.parameters: 'w', 'b'"),
        ({"w": W, "b": B, "c": B}, "weights has 'c' too much, expected the 2 names of task.parameters: 'w', 'b'"),
        ({"w": W, "bias": B}, "weights lacks 'b' and has 'bias' too much, expected the 2 names of task.parameters: "),
        ({"w": W.T, "b": B}, "weights['w'] has the shape (3, 2), expected (2, 3)"),
        ({"w": W[0], "b": B}, "weights['w'] has the shape (3,), expected (2, 3)"),
        ({"w": W.astype(np.float64), "b": B}, "weights['w'] is float64, expected float32; convert it with .astype("),
        ({"w": W, "b": 10}, "weights['b'] is int64, expected float32"),
        ({"w": [[1, 2], [3]], "b": B}, "weights['w'] is a list that NumPy cannot read"),
        (
            {"w": W * np.float32("nan"), "b": B},
            "weights['w'] has a number that is NaN, infinite or too large, expected",
        ),
        ({"w": W, "b": np.float32("inf")}, "weights['b'] has a number that is NaN, infinite or too large, expected"),
        ({"w": BASE_W, "b": BASE_B}, "weights changes no parameter, expected a trained model; call task.decline"),
        ([W, B], "weights is a list, expected a mapping of names to arrays"),
    ],
)
def test_weights_that_do_not_fit_are_one_sentence_and_the_task_stays_open(
    weights: Mapping[str, Any], message: str
) -> None:
    taken = Taken(told())
    with pytest.raises(UserError) as error:
        taken.task.send(weights, **GOOD)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
    assert taken.results == []
    taken.task.send({"w": W, "b": B}, **GOOD)
    assert taken.sent() == [0.5] * 6 + [0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_examples": 0}, "num_examples is 0, expected a whole number from 1 to"),
        ({"num_examples": 2.5}, "num_examples is 2.5, expected a whole number from 1 to"),
        ({"num_examples": True}, "num_examples is True, expected a whole number from 1 to"),
        ({"steps": -1}, "steps is -1, expected a whole number from 1 to"),
        ({"loss": float("nan")}, "loss is nan, expected a finite number; call task.decline"),
        ({"loss": None}, "loss is None, expected a number"),
        ({"loss": 1e300}, "loss is 1e+300, expected a finite number"),
        ({"loss": "0.5"}, "loss is '0.5', expected a number"),
        ({"metrics": [0.5]}, "metrics is a list, expected a mapping of names to numbers"),
        ({"metrics": {"MAE": 1.0}}, "metrics has the name 'MAE', expected 1 to 64 characters of a-z0-9_./-"),
        ({"metrics": {"m" * 65: 1.0}}, f"metrics has the name '{'m' * 65}', expected 1 to 64 characters"),
        ({"metrics": {3: 1.0}}, "metrics has the name 3, expected 1 to 64 characters of a-z0-9_./-"),
        ({"metrics": {"mae": float("nan")}}, "metrics['mae'] is nan, expected a finite number; leave it out"),
        ({"metrics": {"mae": 10**400}}, "metrics['mae'] is 1000"),
        ({"metrics": {"mae": "0.5"}}, "metrics['mae'] is '0.5', expected a number"),
        ({"metrics": {f"m{number}": 0.5 for number in range(33)}}, "metrics has 33 names, expected at most 32"),
        ({"buffers": {"mean": W}}, "buffers has 'mean' too much, expected the 0 names of task.buffers"),
    ],
)
def test_other_arguments_that_do_not_fit_are_one_sentence_too(changes: dict[str, Any], message: str) -> None:
    taken = Taken(told())
    with pytest.raises(UserError) as error:
        taken.task.send({"w": W, "b": B}, **{**GOOD, **changes})
    assert str(error.value).startswith(message)
    assert taken.results == [] and taken.task.is_open


def test_buffers_that_are_not_finite_are_refused() -> None:
    taken = Taken(told(buffers=(MEAN,)))
    with pytest.raises(UserError, match=r"^buffers\['mean'\] has a number that is NaN"):
        taken.task.send({"w": W, "b": B}, buffers={"mean": np.float32([1, np.nan])}, **GOOD)


def test_a_task_is_done_once() -> None:
    taken = Taken(told())
    taken.task.send({"w": W, "b": B}, **GOOD)
    for again in (lambda: taken.task.send({"w": W, "b": B}, **GOOD), taken.task.decline):
        with pytest.raises(UserError, match="task 0 is done already"):
            again()
    assert dict(taken.task.parameters) == {}  # its memory is free
    assert len(taken.results) == 1


def test_a_declined_task_goes_back_as_unavailable_with_the_reason() -> None:
    taken = Taken(told())
    taken.task.decline("battery" * limits.TEXT_MAX)
    (failed,) = taken.results
    assert isinstance(failed, Failed)
    assert failed.reason is Reason.UNAVAILABLE
    assert failed.message == ("battery" * limits.TEXT_MAX)[: limits.TEXT_MAX]


def test_an_update_that_the_server_does_not_wait_for_is_dropped(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path, 0, 1, durable=False)
    taken = Taken(told(), outbox, wanted=False)
    assert not taken.task.is_wanted
    taken.task.send({"w": W, "b": B}, **GOOD)
    assert taken.results == [] and not list(tmp_path.glob("*.update"))
    outbox.close()


# ----------------------------------------------------------------------------------------- files, residuals, verdicts

TOP_1 = EncodingPlan(updates="top-k", models="float32", keep=1)


def train(handover: Handover, about: Welcome, number: int, delta: list[float]) -> None:
    """Work on the task of this number; the result is in its outbox."""
    handover.submit(job_of(about, number))
    job = handover.next_job()
    assert job is not None
    w, b = np.array(delta[:6], np.float32).reshape(2, 3), np.float32(delta[6])
    Task(job, handover).send_delta({"w": w, "b": b}, **GOOD)


def settle(handover: Handover, number: int, *, accepted: bool) -> None:
    handover.submit(Settlement(client_id=0, run_id=RUN, number=number, accepted=accepted))


def decoded(result: Result) -> list[float]:
    assert isinstance(result, Ready)
    frames = TopK(7, keep=1).decode(result.pending.parcel)
    return np.concatenate([np.frombuffer(bytes(frame), "<f4") for frame in frames]).tolist()


def test_numbers_that_an_encoding_leaves_out_go_with_the_next_update_also_of_the_next_process(tmp_path: Path) -> None:
    about, results = told(encoding=TOP_1), list[Result]()
    outbox = Outbox(tmp_path, 0, 1, durable=False)
    handover = Handover(results.append, outbox)
    train(handover, about, 0, [3, 2, 1, 0, 0, 0, 0])
    settle(handover, 0, accepted=True)
    train(handover, about, 1, [0, 0, 4, 0, 0, 0, 0])  # of [0, 2, 5, ...]
    handover.close()  # without a verdict on the second one, as if killed
    outbox.close()
    assert [decoded(result) for result in results] == [[3, 0, 0, 0, 0, 0, 0], [0, 0, 5, 0, 0, 0, 0]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0-1.update", "0.state", "lock"]

    outbox, after = Outbox(tmp_path, 0, 1, durable=False), list[Result]()
    (pending,) = outbox.load()[0]
    assert bytes(pending.parcel[0]) == bytes(results[1].pending.parcel[0])  # type: ignore[union-attr]
    handover = Handover(after.append, outbox)
    settle(handover, 1, accepted=True)  # comes before the first task
    train(handover, about, 2, [0, 1, 0, 0, 0, 0, 0])  # of [0, 3, 0, ...]
    assert decoded(after[0]) == [0, 3, 0, 0, 0, 0, 0]
    settle(handover, 2, accepted=True)
    handover.close()
    outbox.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.state", "lock"]


def test_of_a_rejected_update_nothing_is_left(tmp_path: Path) -> None:
    about, results = told(encoding=TOP_1), list[Result]()
    outbox = Outbox(tmp_path, 0, 1, durable=False)
    handover = Handover(results.append, outbox)
    train(handover, about, 0, [3, 2, 1, 0, 0, 0, 0])
    settle(handover, 0, accepted=False)
    train(handover, about, 1, [0, 0, 4, 0, 0, 0, 0])
    assert decoded(results[1]) == [0, 0, 4, 0, 0, 0, 0]
    handover.close()
    outbox.close()


def test_the_newest_task_is_handed_over_and_none_after_the_end() -> None:
    about = told()
    handover = Handover(lambda result: None, None)
    handover.submit(job_of(about, 0))
    handover.submit(job_of(about, 1))
    job = handover.next_job()
    assert job is not None and job.task.number == 1
    handover.submit(job_of(about, 2, wanted=False))  # taken back meanwhile
    handover.close()
    assert handover.next_job() is None
    assert not handover.send(_without_model(job), None, [])  # type: ignore[arg-type]
