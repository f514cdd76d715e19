"""Rows that were pending at a server's death, in the staging of the next server."""

from torch import Tensor

from unstale.learner.updates import StagedUpdate, Staging

UPDATE = StagedUpdate(
    client_id=0, task_id=1, base_version=0, num_examples=1, batch_examples=1, loss=1.0, local_rate=0.1
)


def staging_with(*values: float, closed: int | None) -> Staging:
    """Rows of one number, with handles from 5 on; rounds take 4 at most."""
    staging = Staging(1, 4, blocks_max=3)
    rows = [(5 + place, UPDATE, lambda row_D, value=value: row_D.fill_(value)) for place, value in enumerate(values)]
    staging.restore(rows, 5 + len(values), closed=closed)
    return staging


def taken(staging: Staging, *handles: int) -> list[float]:
    rows = staging.take(handles).rows
    assert isinstance(rows, Tensor)
    return rows[:, 0].tolist()


def test_a_closed_round_takes_only_its_own_rows() -> None:
    staging = staging_with(1.0, 2.0, 3.0, closed=6)
    assert taken(staging, 5, 6) == [1.0, 2.0]
    assert taken(staging, 7) == [3.0]


def test_without_a_closed_round_the_next_takes_the_waiting_rows() -> None:
    staging = staging_with(1.0, 2.0, 3.0, closed=None)
    assert taken(staging, 5, 6, 7) == [1.0, 2.0, 3.0]
    assert staging.row()[0] == 8
