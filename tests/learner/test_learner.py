"""The learner: the effect of a round on the model, by hand and by law."""

import hashlib
import struct
import weakref

import pytest
import torch

from unstale.learner.learner import Learner
from unstale.learner.updates import RoundUpdate
from unstale.policies import Policy, PolicyContext, Step, UpdateBatch, create, names
from unstale.policies.stages import wrapped
from unstale.settings.learning import OptimiserSettings

NEEDED = {"fedavg-is": {"probabilities": 0.5}}
"""Settings without a default, by policy."""
LARGEST = torch.finfo(torch.float32).max


def update(client_id: int = 0, *, base_version: int = 0, staleness: int = 0, num_examples: int = 1) -> RoundUpdate:
    return RoundUpdate(
        client_id=client_id,
        task_id=client_id + 1,
        base_version=base_version,
        staleness=staleness,
        num_examples=num_examples,
        batch_examples=num_examples + 2,
        loss=1.5,
        local_rate=0.25,
    )


def half(counted: int) -> float:
    return 0.5


def learner(policy: str = "fedavg", *, rate: float = 0.5, keep_versions: bool = False, **settings: object) -> Learner:
    made = create(policy, dimension=2, clients=4, **{**NEEDED.get(policy, {}), **settings})
    return Learner(torch.tensor([1.0, 2.0]), made, learning_rate=lambda counted: rate, keep_versions=keep_versions)


def with_second_vector(subject: Learner, rows: list[list[float]]) -> torch.Tensor:
    """These rows [K, 2], each repeated behind itself if the policy's clients send a second vector."""
    return torch.tensor(rows).repeat(1, subject.row_numbers // 2)


class Recorder(Policy):
    """Records its batch; steps (1, 1) with a quarter of the learning rate."""

    source = "this test"

    def step(self, batch: UpdateBatch) -> Step:
        self.batch = batch
        return Step(direction_d=torch.ones(2), rate_factor=0.25, weights_K=torch.ones(len(batch), dtype=torch.float64))


def recorder() -> Recorder:
    context = PolicyContext(dimension=2, clients=4, device=torch.device("cpu"))
    return Recorder(Recorder.Settings(), context)


def test_a_round_moves_the_model_against_the_direction() -> None:
    subject = learner()
    result = subject.apply_round(torch.tensor([[4.0, 0.0], [0.0, 2.0]]), [update(0), update(1)])
    assert subject.model_d.tolist() == [1.0 - 0.5 * (4.0 + 0.0) / 2, 2.0 - 0.5 * (0.0 + 2.0) / 2]
    assert result.version == subject.version == 1
    assert result.weights_K == (0.5, 0.5)
    assert result.staleness == (0, 0)
    assert result.rate_factor == 1.0
    assert not result.overflowed


def test_the_rate_factor_of_the_policy_multiplies_the_rate() -> None:
    subject = Learner(torch.tensor([1.0, 2.0]), recorder(), learning_rate=half)
    result = subject.apply_round(torch.zeros(1, 2), [update()])
    assert subject.model_d.tolist() == [1.0 - 0.5 * 0.25, 2.0 - 0.5 * 0.25]
    assert result.rate_factor == 0.25


def test_the_digest_is_of_the_new_models_little_endian_bytes() -> None:
    result = learner().apply_round(torch.tensor([[2.0, 2.0]]), [update()])
    assert result.sent.digest == hashlib.sha256(struct.pack("<2f", 0.0, 1.0)).hexdigest()


def test_the_policy_receives_the_metadata_of_each_row() -> None:
    policy = recorder()
    subject = Learner(torch.zeros(2), policy, learning_rate=half)
    subject.apply_round(torch.zeros(0, 2), [])
    subject.apply_round(
        torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
        [update(3, base_version=1, staleness=0, num_examples=7), update(1, base_version=0, staleness=1)],
    )
    batch = policy.batch
    assert batch.matrix_Kd.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert batch.staleness_K.tolist() == [0, 1]
    assert batch.num_examples_K.tolist() == [7, 1]
    assert batch.batch_sizes_K.tolist() == [9, 3]
    assert batch.loss_K.tolist() == [1.5, 1.5]
    assert batch.client_ids_K.tolist() == [3, 1]
    assert batch.local_rates_K.tolist() == [0.25, 0.25]
    assert batch.rate == 0.5
    assert batch.base_models is None


def test_fedasync_receives_the_base_models_of_the_updates() -> None:
    # alpha 1 and no staleness weight: the model becomes the last client's own, w_0 - 0.25 * (4, 8).
    subject = learner("fedasync", alpha=1.0, staleness="constant")
    subject.apply_round(torch.tensor([[40.0, 40.0]]), [update()])
    subject.apply_round(torch.tensor([[4.0, 8.0]]), [update(base_version=0, staleness=1)])
    torch.testing.assert_close(subject.model_d, torch.tensor([1.0 - 0.25 * 4.0, 2.0 - 0.25 * 8.0]))


def test_a_round_without_updates_creates_a_version_of_the_same_model() -> None:
    subject = learner()
    result = subject.apply_round(torch.empty(0, 2), [])
    assert result.version == 1
    assert result.weights_K == result.staleness == ()
    assert subject.model_d.tolist() == [1.0, 2.0]


def test_finite_updates_that_overflow_leave_the_model_as_it_is_and_are_reported() -> None:
    subject = learner("sasgd", divide_by_k=False)
    result = subject.apply_round(torch.tensor([[LARGEST, 0.0], [LARGEST, 0.0]]), [update(0), update(1)])
    assert result.overflowed
    assert result.version == 1
    assert subject.model_d.tolist() == [1.0, 2.0]
    assert not subject.apply_round(torch.zeros(1, 2), [update(base_version=1)]).overflowed


def test_older_versions_stay_as_they_were() -> None:
    subject = learner(keep_versions=True)
    first = subject.model_d
    subject.apply_round(torch.tensor([[2.0, 2.0]]), [update()])
    assert first.tolist() == [1.0, 2.0]
    assert subject.base(0).model_d is first
    assert subject.base(1) is subject.sent


def test_a_round_records_no_gradients_and_leaves_their_recording_as_it_was() -> None:
    class Looks(Recorder):
        def step(self, batch: UpdateBatch) -> Step:
            assert not torch.is_grad_enabled()
            return super().step(batch)

    subject = Learner(torch.zeros(2), Looks(Recorder.Settings(), recorder().context), learning_rate=half)
    for version, recorded in enumerate((True, False, True)):
        with torch.set_grad_enabled(recorded):
            subject.apply_round(torch.zeros(1, 2), [update(base_version=version)])
            assert torch.is_grad_enabled() is recorded


def test_the_first_model_is_not_the_callers_tensor() -> None:
    model_d = torch.zeros(2)
    subject = Learner(model_d, create("fedavg", dimension=2, clients=1), learning_rate=half)
    model_d.fill_(9.0)
    assert subject.model_d.tolist() == [0.0, 0.0]


def test_a_forgotten_version_is_released() -> None:
    subject = learner(keep_versions=True)
    first = weakref.ref(subject.base(0).model_d)
    subject.apply_round(torch.empty(0, 2), [])
    assert first() is not None
    subject.forget(0)
    assert first() is None


def test_without_stored_versions_only_the_current_one_uses_memory() -> None:
    subject = learner()
    first = weakref.ref(subject.model_d)
    subject.apply_round(torch.empty(0, 2), [])
    assert first() is None
    subject.forget(0)  # and has no effect here


def test_a_staleness_inconsistent_with_the_base_version_is_a_programming_error() -> None:
    with pytest.raises(AssertionError, match="at version 0"):
        learner().apply_round(torch.zeros(1, 2), [update(base_version=0, staleness=1)])


@pytest.mark.parametrize("name", names())
def test_a_round_writes_to_no_row(name: str) -> None:
    subject = learner(name)
    matrix_KD = with_second_vector(subject, [[4.0, 0.0], [0.0, 2.0]])
    before_KD = matrix_KD.clone()
    subject.apply_round(matrix_KD, [update(0), update(1)])
    assert torch.equal(matrix_KD, before_KD)


@pytest.mark.parametrize("name", names())
def test_a_learner_continues_from_its_state_to_the_bit(name: str) -> None:
    whole, first_part, second_part = learner(name), learner(name), learner(name)
    rounds = [
        (with_second_vector(whole, rows), updates)
        for rows, updates in (
            ([[0.3, 0.7], [0.1, -0.9]], [update(0), update(1)]),
            ([[0.2, 0.6]], [update(2, base_version=0, staleness=1)]),
            ([[0.5, 0.4]], [update(3, base_version=1, staleness=1)]),
        )
    ]
    whole_digests = [whole.apply_round(*each).sent.digest for each in rounds]
    for each in rounds[:2]:
        first_part.apply_round(*each)
    second_part.load_state_dict(first_part.state_dict())
    assert second_part.version == 2
    assert second_part.apply_round(*rounds[2]).sent.digest == whole_digests[2]


def test_a_state_references_the_immutable_versions() -> None:
    subject = learner("fedasync")
    state = subject.state_dict()
    assert state["sent"]["model_d"] is subject.model_d
    subject.apply_round(torch.tensor([[0.3, 0.7]]), [update(0)])
    assert state["sent"]["model_d"].tolist() == state["versions"][0]["model_d"].tolist() == [1.0, 2.0]


def test_the_memory_of_a_direction_becomes_the_version_and_no_later_step_writes_to_it() -> None:
    subject = learner("fedavg")
    first_d = subject.policy.result_d
    subject.apply_round(torch.tensor([[1.0, 2.0]]), [update(0)])
    version = subject.sent
    assert version.model_d.data_ptr() == first_d.data_ptr()
    before = version.model_d.tolist()
    subject.apply_round(torch.tensor([[3.0, 4.0]]), [update(0, base_version=1)])
    assert version.model_d.tolist() == before
    assert subject.model_d.tolist() != before


def test_a_direction_that_is_the_policys_state_stays_its_own() -> None:
    made = wrapped(create("fedavg", dimension=2, clients=4), optimiser=OptimiserSettings(name="momentum"))
    subject = Learner(torch.tensor([1.0, 2.0]), made, learning_rate=half)
    subject.apply_round(torch.tensor([[1.0, 2.0]]), [update(0)])
    # m = D = 0.5 g, and the model becomes w - m.
    assert made.state_dict()["momentum_d"].tolist() == [0.5, 1.0]
    assert subject.model_d.tolist() == [0.5, 1.0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", names())
def test_a_round_on_a_gpu_agrees_with_the_cpu(name: str) -> None:
    updates = [update(0), update(1)]
    on_cpu = learner(name)
    matrix_KD = with_second_vector(on_cpu, [[0.3, 0.7], [0.1, -0.9]])
    on_gpu = Learner(
        torch.tensor([1.0, 2.0]),
        create(name, dimension=2, clients=4, device="cuda", **NEEDED.get(name, {})),
        learning_rate=half,
    )
    on_cpu.apply_round(matrix_KD, updates)
    on_gpu.apply_round(matrix_KD, updates)
    assert on_gpu.model_d.device.type == "cuda"
    torch.testing.assert_close(on_gpu.model_d.cpu(), on_cpu.model_d)
