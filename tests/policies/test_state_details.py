"""Late effects of a saved state, a threshold in time or an underflow: single rounds by hand."""

import math

import pytest

from support.updates import senders
from unstale.policies import Policy, UpdateBatch, create

# The model moves in the last round only: (0 + 6 + 9) / 3. Updates from before every client was present are dropped.
WAITING = [
    senders((0, 100.0)),
    senders((1, 100.0), (2, 100.0)),
    senders((0, 3.0)),
    senders((1, 6.0), (2, 9.0)),
    senders((0, 0.0)),
]


@pytest.mark.parametrize(
    ("rounds", "dropping", "missing"),
    [(0, True, [0, 1, 2]), (1, True, [1, 2]), (2, False, [0, 1, 2]), (3, False, [1, 2]), (4, False, [])],
)
def test_mifa_keeps_waiting_from_the_state_of_any_round(rounds: int, dropping: bool, missing: list[int]) -> None:
    first, second = (create("mifa", dimension=1, clients=3, init="wait") for _ in range(2))
    before = [first.step(batch).counts for batch in WAITING[:rounds]]
    state = first.state_dict()
    assert (state["dropping"], state["missing"]) == (dropping, missing)
    second.load_state_dict(state)
    steps = [(step.direction_d.item(), step.counts) for step in map(second.step, WAITING[rounds:])]
    assert [*before, *(counts for _, counts in steps)] == [False, False, False, False, True]
    assert steps[-1] == (5.0, True)


def wkafl(**settings: object) -> Policy:
    return create("wkafl", dimension=2, clients=9, **settings)


def two_rows(make_batch, *, loss: float = 1.0, version: int = 0) -> UpdateBatch:
    """e = ((6, 0) + (2, 0)) / 2 = (4, 0); both weigh 1/2. Cut to |e|/2 = 2 in stage two: (2, 0), else (4, 0)."""
    batch = make_batch([[6.0, 0.0], [2.0, 0.0]], staleness=[0, 0], version=version)
    batch.loss_K.fill_(loss)
    return batch


def test_stage_two_of_wkafl_persists_after_a_loss_increase_and_a_restore(make_batch) -> None:
    settings = {"alpha": 0.0, "stage_two_loss": 0.5, "stage_two_bound": 0.5}
    policy, resumed = wkafl(**settings), wkafl(**settings)
    losses = (1.0, 0.5, 9.0)
    steps = [policy.step(two_rows(make_batch, loss=loss)).direction_d.tolist() for loss in losses]
    assert steps == [[4.0, 0.0], [2.0, 0.0], [2.0, 0.0]]
    assert policy.state_dict()["stage"] == 2
    resumed.load_state_dict(policy.state_dict())
    assert resumed.step(two_rows(make_batch, loss=9.0)).direction_d.tolist() == [2.0, 0.0]


@pytest.mark.parametrize(("rounds", "begins"), [(8, 4), (7, 3), (None, None)])
def test_stage_two_of_wkafl_begins_halfway_without_a_rule(rounds: int | None, begins: int | None, make_batch) -> None:
    policy = wkafl(alpha=0.0, stage_two_bound=0.5, rounds=rounds)
    steps = [policy.step(two_rows(make_batch, version=version)).direction_d.tolist() for version in range(8)]
    cut = [version for version, step in enumerate(steps) if step == [2.0, 0.0]]
    assert cut == ([] if begins is None else list(range(begins, 8)))


def test_wkafl_counts_staleness_from_the_freshest_when_the_exponential_underflows(make_batch) -> None:
    """(e/2)^-s is 0 from s = 2429 on; (e/2)^-1 is not."""
    step = wkafl(no_gradient_selection=True).step(
        make_batch([[1.0, 0.0], [0.0, 1.0]], staleness=[3000, 3001], version=3001)
    )
    older = 2 / math.e
    expected = [1 / (1 + older), older / (1 + older)]
    assert step.weights_K.tolist() == pytest.approx(expected)
    assert step.direction_d.tolist() == pytest.approx(expected)
