"""Prepared headers equal the bytes of `encode`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unstale_proto import limits
from unstale_proto.codec import Prepared, encode
from unstale_proto.messages import Ack, Heartbeat, Task

POSITIVES = st.integers(1, limits.INTEGER_MAX)
COUNTS = st.integers(0, limits.INTEGER_MAX)
ACCEPTED = Ack(task_id=1, outcome="accepted", first_outcome="accepted")
TASKS = st.builds(
    Task,
    task_id=POSITIVES,
    number=COUNTS,
    version=COUNTS,
    learning_rate=st.floats(0, limits.LEARNING_RATE_MAX, exclude_min=True),
    signature=st.just("0" * 64),
    payload_bytes=st.just(8),
    evaluate=st.none() | st.booleans(),
    run_id=st.none() | st.just("1" * 32),
)


@given(task=TASKS, task_id=POSITIVES, number=COUNTS)
def test_a_prepared_task_equals_its_encoding(task: Task, task_id: int, number: int) -> None:
    prepared = Prepared(task)
    other = task.model_copy(update={"task_id": task_id, "number": number})
    assert prepared.header(task_id=task_id, number=number) == encode(other)
    assert prepared.header(task_id=task.task_id, number=task.number) == encode(task)  # without fields of the other task


@given(task_id=POSITIVES)
def test_a_prepared_verdict_equals_its_encoding(task_id: int) -> None:
    assert Prepared(ACCEPTED).header(task_id=task_id) == encode(ACCEPTED.model_copy(update={"task_id": task_id}))


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(AssertionError):
        Prepared(Heartbeat(number=4, version=41)).header(newest_task=1)
