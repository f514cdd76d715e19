"""State of the learner beside the parameters: buffers, a second vector, the learning rate of the round."""

from typing import Any

import pytest
import torch

from unstale.learner.learner import Learner
from unstale.learner.updates import RoundUpdate
from unstale.policies import Policy, PolicyContext, PolicySettings, Step, UpdateBatch, create
from unstale.policies.stages import wrapped
from unstale.settings.learning import OptimiserSettings

ADAM = OptimiserSettings(name="adam")


class Scripted(Policy[PolicySettings]):
    """Returns the given weights and a zero step; rounds in `waits` do not count.

    Its second vector is the sum of the received ones.
    """

    source = "this test"

    def __init__(self, weights: list[float], waits: tuple[int, ...] = (), *, extra: bool = False) -> None:
        super().__init__(PolicySettings(), PolicyContext(dimension=2, clients=4, device=torch.device("cpu")))
        self._weights = weights
        self._waits = waits
        self._extra_d = torch.zeros(2) if extra else None

    @property
    def extra_d(self) -> torch.Tensor | None:
        return self._extra_d

    def step(self, batch: UpdateBatch) -> Step:
        if self._extra_d is not None:
            assert batch.extra_Kd is not None
            self._extra_d = self._extra_d + batch.extra_Kd.sum(0)
        return Step(
            direction_d=torch.zeros(2),
            rate_factor=1.0,
            weights_K=torch.tensor(self._weights[: len(batch)], dtype=torch.float64),
            counts=batch.version not in self._waits,
        )

    def state_dict(self) -> dict[str, Any]:
        return {"extra_d": self._extra_d}

    def load_state_dict(self, state: Any) -> None:
        self._extra_d = state["extra_d"]


def updates(count: int, version: int = 0) -> list[RoundUpdate]:
    return [
        RoundUpdate(
            client_id=client_id,
            task_id=client_id + 1,
            base_version=version,
            staleness=0,
            num_examples=1,
            batch_examples=1,
            loss=1.0,
            local_rate=0.1,
        )
        for client_id in range(count)
    ]


def learner(policy: Policy[Any], *buffers: float, rate: Any = lambda counted: 0.5, **others: Any) -> Learner:
    return Learner(torch.tensor([1.0, 2.0]), policy, learning_rate=rate, buffers_b=torch.tensor(buffers), **others)


def buffers_after(weights: list[float], rows: list[list[float]], *before: float) -> list[float]:
    """The buffers after one round. rows: received buffers, each behind a pseudo-gradient."""
    subject = learner(Scripted(weights), *before)
    matrix_KD = torch.tensor([[1.0, 1.0, *row] for row in rows]).reshape(len(rows), 2 + len(before))
    subject.apply_round(matrix_KD, updates(len(rows)))
    return subject.sent.buffers_b.tolist()


def test_buffers_are_averaged_by_the_weights_scaled_to_one() -> None:
    # (0.5 * 8 + 1.5 * 16) / 2 = 14 and (0.5 * 4 + 1.5 * 0) / 2 = 1
    assert buffers_after([0.5, 1.5], [[8.0, 4.0], [16.0, 0.0]], 0.0, 0.0) == [14.0, 1.0]


def test_previous_buffers_do_not_affect_the_average() -> None:
    assert buffers_after([1.0, 1.0], [[8.0], [16.0]], 4.0) == [12.0]


def test_equal_buffers_stay_equal_to_the_bit() -> None:
    same = torch.tensor([0.1, 1 / 3, 7e-9]).tolist()
    assert buffers_after([0.1, 0.2, 0.7], [same, same, same], *same) == same


def test_buffers_are_averaged_uniformly_when_no_update_weighs_anything() -> None:
    assert buffers_after([0.0, 0.0], [[8.0], [16.0]], 0.0) == [12.0]


def test_buffers_are_unchanged_without_sent_buffers() -> None:
    assert buffers_after([], [], 3.0, 4.0) == [3.0, 4.0]


def test_buffers_are_unchanged_while_the_policy_waits() -> None:
    subject = learner(Scripted([1.0], waits=(0,)), 3.0)
    subject.apply_round(torch.tensor([[1.0, 1.0, 8.0]]), updates(1))
    assert subject.sent.buffers_b.tolist() == [3.0]
    subject.apply_round(torch.tensor([[1.0, 1.0, 8.0]]), updates(1, version=1))
    assert subject.sent.buffers_b.tolist() == [8.0]


def test_buffers_that_overflow_float32_are_unchanged_and_reported() -> None:
    subject = learner(Scripted([1.0]), 3e38)
    result = subject.apply_round(torch.tensor([[1.0, 1.0, -3e38]]), updates(1))
    assert result.overflowed
    assert subject.sent.buffers_b.tolist() == [torch.tensor(3e38).item()]


@pytest.mark.parametrize("stages", [{}, {"clip_norm": 1.0}, {"norm": "mean-of-updates"}, {"optimiser": ADAM}])
@pytest.mark.parametrize("name", ["coordinate-median", "trimmed-mean", "geometric-median", "krum"])
def test_under_a_robust_policy_one_client_cannot_drag_the_buffers_away(name: str, stages: dict[str, Any]) -> None:
    subject = learner(wrapped(create(name, dimension=2, clients=5), **stages), 0.0)
    gradients = torch.tensor([[1.0, 2.0], [1.1, 2.0], [1.0, 2.1], [0.9, 2.0], [1e6, -1e6]])
    buffers = torch.tensor([[5.0], [5.1], [4.9], [5.0], [1e30]])
    subject.apply_round(torch.cat((gradients, buffers), dim=1), updates(5))
    assert 4.9 <= subject.sent.buffers_b.item() <= 5.1


def test_buffers_of_an_older_version_stay_as_they_were() -> None:
    subject = learner(Scripted([1.0]), 0.0, keep_versions=True)
    subject.apply_round(torch.tensor([[1.0, 1.0, 8.0]]), updates(1))
    assert subject.base(0).buffers_b.tolist() == [0.0]
    assert subject.base(1).buffers_b.tolist() == [8.0]


def test_the_first_buffers_are_not_the_callers_tensor() -> None:
    buffers_b = torch.zeros(1)
    subject = Learner(torch.zeros(2), Scripted([]), learning_rate=lambda counted: 0.5, buffers_b=buffers_b)
    buffers_b.fill_(9.0)
    assert subject.sent.buffers_b.tolist() == [0.0]


def test_a_row_is_as_long_as_all_that_is_sent() -> None:
    assert learner(Scripted([])).row_numbers == 2
    assert learner(Scripted([]), 0.0, 0.0, 0.0).row_numbers == 2 + 3
    assert learner(Scripted([], extra=True), 0.0).row_numbers == 2 + 1 + 2


def test_a_version_is_stored_with_its_second_vector() -> None:
    # parameters 2, buffers 1, second vector 2
    subject = learner(Scripted([1.0, 1.0], extra=True), 0.0, keep_versions=True)
    subject.apply_round(torch.tensor([[1.0, 1.0, 5.0, 10.0, 20.0], [1.0, 1.0, 7.0, 1.0, 2.0]]), updates(2))
    first, second = subject.base(0).extra_d, subject.base(1).extra_d
    assert first is not None and second is not None
    assert first.tolist() == [0.0, 0.0]
    assert second.tolist() == [11.0, 22.0]
    assert subject.sent.buffers_b.tolist() == [6.0]


def test_scaffold_moves_its_control_variate_by_the_changes_over_all_clients() -> None:
    # N = 4, of whom 2 sent: c = 0 + ((4, 8) + (8, 4)) / 4; the model moves by the mean of (2, 0) and (0, 2), times 0.5
    subject = learner(create("scaffold", dimension=2, clients=4))
    result = subject.apply_round(torch.tensor([[2.0, 0.0, 4.0, 8.0], [0.0, 2.0, 8.0, 4.0]]), updates(2))
    assert subject.model_d.tolist() == [0.5, 1.5]
    assert result.sent.extra_d is not None
    assert result.sent.extra_d.tolist() == [3.0, 3.0]


def test_the_learning_rate_follows_the_counted_rounds() -> None:
    subject = learner(Scripted([1.0], waits=(1, 2)), rate=lambda counted: 1 / (counted + 1))
    assert subject.learning_rate == 1.0
    rounds = [subject.apply_round(torch.ones(1, 2), updates(1, version)) for version in range(4)]
    assert [made.learning_rate for made in rounds] == [1 / 2, 1 / 2, 1 / 2, 1 / 3]
    assert subject.learning_rate == 1 / 3


def test_the_servers_step_follows_the_learning_rate_times_its_multiplier() -> None:
    subject = learner(
        create("fedavg", dimension=2, clients=4), rate=lambda counted: 0.5 / (counted + 1), server_multiplier=0.5
    )
    subject.apply_round(torch.tensor([[4.0, 0.0]]), updates(1))
    subject.apply_round(torch.tensor([[0.0, 8.0]]), updates(1, 1))
    assert subject.model_d.tolist() == [1.0 - 0.5 * 0.5 * 4.0, 2.0 - 0.5 * 0.25 * 8.0]


@pytest.mark.parametrize("keep_versions", [False, True])
def test_buffers_second_vector_and_count_are_restored_from_the_state(keep_versions: bool) -> None:
    def made() -> Learner:
        policy = Scripted([0.25, 0.75], waits=(0,), extra=True)
        return learner(policy, 0.0, rate=lambda counted: 1 / (counted + 1), keep_versions=keep_versions)

    rows = torch.tensor([[1.0, 1.0, 8.0, 0.5, 0.25], [1.0, 1.0, 4.0, 0.25, 0.5]])
    whole, first_part, second_part = made(), made(), made()
    for subject in (whole, first_part):
        for version in range(2):
            subject.apply_round(rows * (version + 1), updates(2, version))
    second_part.load_state_dict(first_part.state_dict())
    assert second_part.learning_rate == whole.learning_rate == 1 / 2
    assert second_part.sent.digest == whole.sent.digest
    if keep_versions:
        assert [second_part.base(version).digest for version in range(3)] == [
            whole.base(version).digest for version in range(3)
        ]
    ends = [subject.apply_round(rows, updates(2, 2)) for subject in (whole, second_part)]
    assert ends[0].sent.digest == ends[1].sent.digest
    assert ends[0].learning_rate == ends[1].learning_rate == 1 / 3
