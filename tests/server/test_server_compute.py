"""The compute thread: what it answers when it has made a version."""

import pytest
import torch

from unstale import flat
from unstale.learner.learner import Learner
from unstale.learner.updates import Round, RoundUpdate
from unstale.policies import create
from unstale.server.commands import Applied, ApplyCommand, Result
from unstale.server.compute import Compute, Save
from unstale_proto import limits


def made(dimension: int, buffers: int, save: Save | None) -> Applied:
    """What one round of one update is answered with."""
    learner = Learner(
        torch.zeros(dimension),
        create("fedavg", dimension=dimension, clients=1),
        learning_rate=lambda counted: 0.5,
        buffers_b=torch.ones(buffers),
    )
    letters: list[Result] = []
    compute = Compute(
        learner, evaluate=lambda version: pytest.fail("not asked for"), post=letters.append, save=save
    )
    update = RoundUpdate(
        client_id=0,
        task_id=1,
        base_version=0,
        staleness=0,
        num_examples=1,
        batch_examples=1,
        loss=1.0,
        local_rate=0.5,
    )
    rows = torch.arange(dimension + buffers, dtype=torch.float32)[None]
    compute.submit(ApplyCommand(round=Round(rows, ()), updates=(update,)))
    compute.start()
    compute.close()
    (answer,) = letters
    assert isinstance(answer, Applied)
    return answer


def save(command: object, state: object) -> tuple[str, int]:
    return "a checkpoint", 1


def test_the_digest_that_is_posted_is_of_the_frames_that_are_sent() -> None:
    # Two frames of the model, for one is too short, and one of the buffers.
    answer = made(limits.FRAME_BYTES_MAX // limits.FLOAT_BYTES + 1, 3, save)
    assert len(answer.frames) == 3
    assert answer.digest == answer.result.sent.digest == flat.digest_of_frames(answer.frames)


def test_a_run_that_leaves_nothing_behind_takes_no_digest() -> None:
    assert made(2, 0, None).digest == ""


def test_on_a_cpu_no_memory_of_a_device_is_held() -> None:
    assert made(2, 0, None).device_memory_bytes == 0
