"""FedAR, MIFA and FedVARP with their memory of all clients on the device, and FedHist with its past rounds there."""

from typing import Any

import pytest
import torch
from torch import Tensor

from support.simulated_device import CUDA, DeviceTensor, simulated_device
from unstale.config import build, load
from unstale.config.memory import allocator
from unstale.policies import Policy, UpdateBatch, create

CLIENTS, D = 12, 7
CPU = torch.device("cpu")
POLICIES = [
    pytest.param("fedar", {}, id="fedar"),
    pytest.param("fedar", {"cutoff": "none", "rho": 1.0, "psi_max": 3.0}, id="fedar-settled"),
    pytest.param("mifa", {"init": "zeros"}, id="mifa"),
    pytest.param("mifa", {"init": "wait"}, id="mifa-wait"),
    pytest.param("fedvarp", {}, id="fedvarp"),
]
ROUNDS = [[0, 1, 2, 3], [4, 0, 5], [], [6, 4, 6, 7], [8, 9, 1, 2], [10, 11], [3, 3, 0], [5, 6, 7, 8, 9, 10, 11, 4]]


def batch(version: int, where: torch.device, dimension: int = D) -> UpdateBatch:
    ids = ROUNDS[version % len(ROUNDS)]
    matrix_Kd = torch.randn(len(ids), dimension, generator=torch.Generator().manual_seed(version))
    return UpdateBatch(
        version=version,
        matrix_Kd=matrix_Kd.to(where),
        staleness_K=torch.zeros(len(ids), dtype=torch.int64),
        num_examples_K=torch.ones(len(ids), dtype=torch.int64),
        loss_K=torch.ones(len(ids)),
        client_ids_K=torch.tensor(ids, dtype=torch.int64),
    )


def policy(
    name: str, settings: dict[str, Any], memory: str, where: torch.device, free: int = 2**30, dimension: int = D
) -> Policy[Any]:
    return create(
        name,
        dimension=dimension,
        clients=CLIENTS,
        device=where,
        allocate=allocator(memory, None, where, lambda _: free),
        **settings,
    )


def on_cpu(name: str, settings: dict[str, Any], rounds: int) -> tuple[list[Tensor], dict[str, Any]]:
    subject = policy(name, settings, "host", torch.device("cpu"))
    directions = [subject.step(batch(v, torch.device("cpu"))).direction_d.clone() for v in range(rounds)]
    return directions, subject.state_dict()


def assert_same_state(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for key, value in one.items():
        if isinstance(value, Tensor):
            assert type(other[key]) is Tensor and other[key].device.type == "cpu"
            torch.testing.assert_close(other[key], value, rtol=1e-6, atol=1e-6)
        else:
            assert other[key] == value


@pytest.mark.parametrize(("name", "settings"), POLICIES)
def test_a_step_copies_no_row_to_the_host_and_waits_at_most_twice(name: str, settings: dict[str, Any]) -> None:
    expected, expected_state = on_cpu(name, settings, 16)
    with simulated_device() as copies:
        subject = policy(name, settings, "device", CUDA)
        for version, expected_d in enumerate(expected):
            arrived = batch(version, CUDA)
            copies.clear()
            direction_d = subject.step(arrived).direction_d
            assert copies.to_host == []
            assert copies.waits <= 2
            assert isinstance(direction_d, DeviceTensor)
            torch.testing.assert_close(direction_d.host, expected_d, rtol=1e-6, atol=1e-6)
        assert_same_state(expected_state, subject.state_dict())


@pytest.mark.parametrize(("name", "settings"), POLICIES)
def test_with_memory_on_the_host_the_rows_are_copied_there(name: str, settings: dict[str, Any]) -> None:
    expected, expected_state = on_cpu(name, settings, 16)
    with simulated_device() as copies:
        subject = policy(name, settings, "host", CUDA)
        for version, expected_d in enumerate(expected):
            direction_d = subject.step(batch(version, CUDA)).direction_d
            assert isinstance(direction_d, DeviceTensor)
            assert torch.equal(direction_d.host, expected_d)
        assert len(ROUNDS[0]) * D in copies.to_host
        assert_same_state(expected_state, subject.state_dict())


@pytest.mark.parametrize(("saved", "loaded"), [("device", "host"), ("host", "device")])
@pytest.mark.parametrize(("name", "settings"), POLICIES)
def test_a_state_saved_with_one_memory_resumes_with_the_other(
    name: str, settings: dict[str, Any], saved: str, loaded: str
) -> None:
    expected, _ = on_cpu(name, settings, 16)
    with simulated_device():
        before, after = policy(name, settings, saved, CUDA), policy(name, settings, loaded, CUDA)
        for version in range(8):
            before.step(batch(version, CUDA))
        after.load_state_dict(before.state_dict())
        for version in range(8, 16):
            direction_d = after.step(batch(version, CUDA)).direction_d
            assert isinstance(direction_d, DeviceTensor)
            torch.testing.assert_close(direction_d.host, expected[version], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("name", "settings"), POLICIES)
@pytest.mark.parametrize(("free_bytes", "on_device"), [(2 * 4 * CLIENTS * D, True), (2 * 4 * CLIENTS * D - 2, False)])
def test_auto_keeps_the_rows_on_the_device_if_they_fit_into_half_of_its_free_memory(
    name: str, settings: dict[str, Any], free_bytes: int, on_device: bool
) -> None:
    expected, _ = on_cpu(name, settings, 16)
    with simulated_device() as copies:
        subject = policy(name, settings, "auto", CUDA, free_bytes)
        for version, expected_d in enumerate(expected):
            direction_d = subject.step(batch(version, CUDA)).direction_d
            assert isinstance(direction_d, DeviceTensor)
            torch.testing.assert_close(direction_d.host, expected_d, rtol=1e-6, atol=1e-6)
        assert (len(ROUNDS[0]) * D in copies.to_host) is not on_device


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("memory", ["device", "auto"])
@pytest.mark.parametrize(("name", "settings"), POLICIES)
def test_on_a_gpu_the_steps_equal_those_on_the_cpu(name: str, settings: dict[str, Any], memory: str) -> None:
    cpu, cuda, dimension = torch.device("cpu"), torch.device("cuda"), 3_000_001
    subject = policy(name, settings, memory, cuda, dimension=dimension)
    reference = policy(name, settings, "host", cpu, dimension=dimension)
    for version in range(16):
        arrived = batch(version, cuda, dimension)
        torch.cuda.set_sync_debug_mode("error" if name != "fedvarp" else "default")
        try:
            direction_d = subject.step(arrived).direction_d
        finally:
            torch.cuda.set_sync_debug_mode("default")
        expected_d = reference.step(batch(version, cpu, dimension)).direction_d
        torch.testing.assert_close(direction_d.cpu(), expected_d, rtol=1e-6, atol=1e-6)
    assert_same_state(reference.state_dict(), subject.state_dict())


ROWS = 2 + (2 + 1) * 3  # of FedHist with h = 12 / (2 * 3): directions, and the updates of h + 1 rounds


@pytest.mark.parametrize(
    ("memory", "device_rows", "on_device"),
    [("auto", 2 * ROWS, True), ("auto", 2 * ROWS - 1, False), ("device", 0, True), ("host", 10 * ROWS, False)],
)
def test_fedhist_computes_on_the_host_if_its_past_rounds_do_not_fit_the_device(
    memory: str, device_rows: int, on_device: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load(
        variables={
            "UNSTALE_CLIENTS": str(CLIENTS),
            "UNSTALE_TRIGGER__NAME": "k-async",
            "UNSTALE_TRIGGER__K": "3",
            "UNSTALE_POLICY__NAME": "fedhist",
            "UNSTALE_POLICY__MEMORY": memory,
        }
    )
    monkeypatch.setattr(build, "memory_bytes", lambda _: 4 * D * device_rows)
    reference = create("fedhist", dimension=D, clients=CLIENTS, round_size=3)
    with simulated_device() as copies:
        subject = build.policy(settings, D, CUDA, build.coordinator_settings(settings))
        for version in range(8):
            arrived, expected = rounds_of_three(version, CUDA), reference.step(rounds_of_three(version, CPU))
            copies.clear()
            step = subject.step(arrived)
            assert copies.waits == 2
            assert (3 * D in copies.to_host) is not on_device
            assert isinstance(step.direction_d, DeviceTensor)
            torch.testing.assert_close(step.direction_d.host, expected.direction_d, rtol=1e-6, atol=1e-6)
            assert torch.equal(step.weights_K, expected.weights_K) or on_device
        state = subject.state_dict()
        resumed = create("fedhist", dimension=D, clients=CLIENTS, round_size=3, device=CUDA)
        resumed.load_state_dict(state)
        assert resumed.step(rounds_of_three(8, CUDA)).metrics == pytest.approx(
            reference.step(rounds_of_three(8, CPU)).metrics, rel=1e-5
        )


def rounds_of_three(version: int, where: torch.device) -> UpdateBatch:
    return UpdateBatch(
        version=version,
        matrix_Kd=torch.randn(3, D, generator=torch.Generator().manual_seed(version)).to(where),
        staleness_K=torch.tensor([0, min(version, 1), 0]),
        num_examples_K=torch.ones(3, dtype=torch.int64),
        loss_K=torch.ones(3),
        client_ids_K=(torch.arange(3) + 3 * version) % CLIENTS,
    )
