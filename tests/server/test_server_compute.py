"""The compute thread: its answer when it has made a version."""

import pytest
import torch
from torch import Tensor

from support.compensation import made as compensator
from unstale import flat
from unstale.learner.learner import Learner
from unstale.learner.updates import Round, RoundUpdate, Rows
from unstale.policies import create
from unstale.server.commands import Applied, ApplyCommand, ComputeResult
from unstale.server.compute import Compute, Save
from unstale_proto import limits


def of(client_id: int, *, base_version: int = 0, staleness: int = 0) -> RoundUpdate:
    """The facts about the update of a client."""
    return RoundUpdate(
        client_id=client_id,
        task_id=1 + base_version + staleness,
        base_version=base_version,
        staleness=staleness,
        num_examples=1,
        batch_examples=1,
        loss=1.0,
        local_rate=0.5,
    )


def made(dimension: int, buffers: int, save: Save | None) -> Applied:
    """The answer to one round of one update."""
    learner = Learner(
        torch.zeros(dimension),
        create("fedavg", dimension=dimension, clients=1),
        learning_rate=lambda counted: 0.5,
        buffers_b=torch.ones(buffers),
    )
    letters: list[ComputeResult] = []
    compute = Compute(
        learner=learner, evaluate=lambda version: pytest.fail("not asked for"), post=letters.append, save=save
    )
    rows = torch.arange(dimension + buffers, dtype=torch.float32)[None]
    compute.submit(ApplyCommand(round=Round(rows, ()), updates=(of(0),)))
    compute.start()
    compute.close()
    (answer,) = letters
    assert isinstance(answer, Applied)
    return answer


class Far(Learner):
    """Its device is elsewhere: rows that it has not copied itself are copied."""

    def __init__(self) -> None:
        super().__init__(
            torch.zeros(3),
            create("fedavg", dimension=3, clients=2),
            learning_rate=lambda counted: 0.5,
            compensator=compensator("first-order"),
        )
        self.copies: list[Tensor] = []

    def here(self, rows: Tensor | Rows) -> Tensor:
        assert isinstance(rows, Tensor)
        if not any(rows is copy for copy in self.copies):
            self.copies.append(rows.clone())
        return self.copies[-1]


def test_the_rows_of_a_round_go_to_the_device_once() -> None:
    learner, letters = Far(), list[ComputeResult]()
    compute = Compute(learner=learner, evaluate=lambda version: pytest.fail("not asked for"), post=letters.append)
    rounds = [torch.full((2, 3), 2.0), torch.full((2, 3), 4.0)]
    for version, rows in enumerate(rounds):
        stale, fresh = of(0, base_version=0, staleness=version), of(1, base_version=version)
        compute.submit(ApplyCommand(round=Round(rows, ()), updates=(stale, fresh)))
    compute.start()
    compute.close()
    methods = [
        [update.method for update in item.result.compensation.updates]
        for item in letters
        if isinstance(item, Applied) and item.result.compensation is not None
    ]
    assert methods == [["none", "none"], ["first-order", "none"]]
    assert len(learner.copies) == 2
    assert not torch.equal(learner.copies[1][0], rounds[1][0])  # the estimate, which needs no further copy
    assert rounds[1].tolist() == [[4.0] * 3] * 2


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
