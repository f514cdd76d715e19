"""How often the server's compute thread waits for the device in a round: rows, step, new model, frames."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from support.simulated_device import CUDA, simulated_device
from unstale.learner.learner import Learner
from unstale.learner.updates import RoundUpdate
from unstale.policies import create, names
from unstale.server.compute import frames_of

CLIENTS, D, B, K = 12, 7, 2, 4
NEEDED = {"fedavg-is": {"probabilities": 0.5}, "mifa": {"init": "zeros"}}
STEP_WAITS = {
    "fedhist": 2,
    "geometric-median": 1,
    "gsgm": 1,
    "krum": 1,
    "multi-krum": 1,
    "scaffold": 1,
    "wkafl": 1,
}  # 0 for the others; REFL's one is for rounds with stale updates


def updates(version: int) -> Sequence[RoundUpdate]:
    return [
        RoundUpdate(
            client_id=(K * version + i) % CLIENTS,
            task_id=K * version + i,
            base_version=version,
            num_examples=1 + i,
            batch_examples=1,
            loss=1.0,
            local_rate=0.1,
            staleness=0,
        )
        for i in range(K)
    ]


def learner(name: str, where: torch.device) -> Learner:
    policy = create(
        name,
        dimension=D,
        clients=CLIENTS,
        device=where,
        round_size=K,
        rounds=20,
        allocate=lambda rows, columns: torch.zeros(rows, columns, device=where),
        **NEEDED.get(name, {}),
    )
    return Learner(torch.ones(D), policy, learning_rate=lambda _: 0.1, buffers_b=torch.ones(B), past_versions=8)


def rows_of(subject: Learner, version: int) -> Tensor:
    return torch.randn(K, subject.row_numbers, generator=torch.Generator().manual_seed(version))


@pytest.mark.parametrize("name", names())
def test_a_round_waits_for_its_step_for_the_check_of_the_model_and_for_its_copy_to_the_host(name: str) -> None:
    reference = learner(name, torch.device("cpu"))
    with simulated_device() as copies:
        subject = learner(name, CUDA)
        for version in range(8):
            rows = rows_of(subject, version)
            reference.apply_round(rows, updates(version))
            copies.clear()
            subject.apply_round(rows, updates(version))
            assert copies.waits == STEP_WAITS.get(name, 0) + 1
            frames = frames_of(subject.sent)
            assert copies.waits == STEP_WAITS.get(name, 0) + 2
            expected = torch.cat([torch.frombuffer(frame, dtype=torch.float32) for frame in frames_of(reference.sent)])
            sent = torch.cat([torch.frombuffer(frame, dtype=torch.float32) for frame in frames])
            torch.testing.assert_close(sent, expected, rtol=1e-5, atol=1e-5)
