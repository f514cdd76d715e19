"""The simulated device refuses what CUDA refuses, and counts waits, copies and launches."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from support.simulated_device import CUDA, DeviceTensor, SimulatedDevice, WaitsForDeviceError, simulated_device


@pytest.fixture
def device() -> Iterator[SimulatedDevice]:
    with simulated_device() as device:
        yield device


def counts(device: SimulatedDevice) -> tuple[int, int, int]:
    """Synchronisations, copies to the host, and blocking copies to the device."""
    assert device.waits == len(device.synchronisations) + len(device.uploads)
    return len(device.synchronisations), len(device.to_host), len(device.uploads)


CASES = {
    "item": (lambda x: x[0].item(), (1, 0, 0)),
    "float": (lambda x: float(x.sum()), (1, 0, 0)),
    "condition": (lambda x: 1 if x[0] > 0 else 2, (1, 0, 0)),
    "equal": (lambda x: torch.equal(x, x), (1, 0, 0)),
    "allclose": (lambda x: torch.allclose(x, x), (1, 0, 0)),
    "nonzero": (lambda x: x.nonzero(), (1, 0, 0)),
    "mask": (lambda x: x[x > 0], (1, 0, 0)),
    "masked_select": (lambda x: torch.masked_select(x, x > 0), (1, 0, 0)),
    "put by mask": (lambda x: x.index_put_((x > 2,), x[2:]), (1, 0, 0)),
    "unique": (lambda x: torch.unique(x), (1, 0, 0)),
    "bincount": (lambda x: torch.bincount(x.long()), (2, 0, 0)),
    "repeats": (lambda x: x.repeat_interleave(x.long()), (1, 0, 0)),
    "synchronize": (lambda x: torch.cuda.synchronize(), (1, 0, 0)),
    "tolist": (lambda x: x.tolist(), (1, 1, 0)),
    "cpu": (lambda x: x.cpu(), (1, 1, 0)),
    "copy to the host": (lambda x: torch.empty(3).copy_(x), (1, 1, 0)),
    "to the host as float64": (lambda x: x.to("cpu", torch.float64), (1, 1, 0)),
    "NumPy by force": (lambda x: x.numpy(force=True), (1, 1, 0)),
    "tensor": (lambda x: torch.tensor([1.0, 2.0], device=CUDA), (0, 0, 1)),
    "to the device": (lambda x: torch.ones(3).to(CUDA), (0, 0, 1)),
    "to that of a tensor": (lambda x: x.copy_(torch.ones(3)), (0, 0, 1)),
    "index on the host": (lambda x: x[torch.tensor([0, 2])], (0, 0, 1)),
    "list as index": (lambda x: x[[0, 2]], (0, 0, 1)),
    "where with a number": (lambda x: torch.where(x > 0, x, 0.0), (0, 0, 1)),
    "to the device, not blocking": (lambda x: torch.ones(3).to(CUDA, non_blocking=True), (0, 0, 0)),
    "fill by mask": (lambda x: x.masked_fill_(x > 2, 1.0), (0, 0, 0)),
    "put a number by mask": (lambda x: x.__setitem__(x > 2, 1.0), (0, 0, 0)),
    "number on the host": (lambda x: x * torch.tensor(2.0), (0, 0, 0)),
    "repeats with a size": (lambda x: x.repeat_interleave(x.long(), output_size=6), (0, 0, 0)),
    "factories": (lambda x: torch.zeros(3, device=CUDA) + torch.ones_like(x) + x.new_full((3,), 2.0), (0, 0, 0)),
    "on the device already": (lambda x: x.to(CUDA).to("cuda").float(), (0, 0, 0)),
    "empty copy": (lambda x: x[:0].cpu(), (0, 0, 0)),
}


@pytest.mark.parametrize("name", CASES)
def test_waits_and_copies_are_counted(device: SimulatedDevice, name: str) -> None:
    operation, expected = CASES[name]
    x = torch.arange(1, 4, device=CUDA).float()
    device.clear()
    operation(x)
    assert counts(device) == expected


WAITING = [name for name, (_, expected) in CASES.items() if any(expected)]


@pytest.mark.parametrize("name", WAITING)
def test_work_that_must_not_wait_raises_where_it_waits(device: SimulatedDevice, name: str) -> None:
    x = torch.arange(1, 4, device=CUDA).float()
    with pytest.raises(WaitsForDeviceError, match=r"at tests/device/test_simulated_device\.py"), device.without_waits():
        CASES[name][0](x)


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: x + torch.ones(3),
        lambda x: torch.ones(3).add_(x),
        lambda x: torch.mv(torch.ones(2, 3), x),
        lambda x: torch.cat([x, torch.ones(3)]),
        lambda x: torch.stack([x[0], torch.tensor(1.0)]),
        lambda x: torch.add(x, x, out=torch.empty(3)),
        lambda x: nn.Linear(3, 2)(x),
        lambda x: torch.ones(3)[x.long()],
    ],
)
def test_tensors_on_two_devices_are_refused(device: SimulatedDevice, operation: Callable[[Tensor], Any]) -> None:
    with pytest.raises(AssertionError, match="tensors on two devices at tests/device/"), torch.no_grad():
        operation(torch.zeros(3, device=CUDA))


@pytest.mark.parametrize("read", [lambda x: x.numpy(), np.asarray, lambda x: np.dot(x, x)])
def test_numpy_reads_no_device_memory(device: SimulatedDevice, read: Callable[[Tensor], Any]) -> None:
    with pytest.raises(
        AssertionError, match=r"values of shape \(3,\) on the device are read by NumPy at tests/device/"
    ):
        read(torch.zeros(3, device=CUDA))


def test_launches_are_operations_that_compute(device: SimulatedDevice) -> None:
    x = torch.zeros(2, 3, device=CUDA)  # one
    y = x.T[1:].reshape(-1) + 1  # a copy and a sum: the slice of the transpose is not contiguous
    torch.empty_like(y).copy_(y)  # one
    assert device.launches == 4


def test_a_model_trains_on_the_device_as_on_the_host(device: SimulatedDevice) -> None:
    def trained(where: str) -> list[Tensor]:
        module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.copy_(torch.linspace(-1, 1, parameter.numel()).view_as(parameter))
        module.to(where)
        optimiser = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        for step in range(3):
            optimiser.zero_grad()
            module(torch.linspace(0, 1 + step, 12).view(4, 3).to(where)).square().sum().backward()
            optimiser.step()
        return [*module.parameters(), *module.buffers()]

    on_host, on_device = trained("cpu"), trained("cuda")
    assert all(isinstance(tensor, DeviceTensor) for tensor in on_device)
    assert all(map(torch.equal, on_host, (tensor.cpu() for tensor in on_device)))


def test_vmap_and_grad_compute_on_the_device(device: SimulatedDevice) -> None:
    def gradients(where: str) -> Tensor:
        rows = torch.linspace(-1, 1, 6).view(2, 3).to(where)
        device.clear()
        return torch.func.vmap(torch.func.grad(lambda row: (row.softmax(0).log() * row).sum()))(rows)

    on_device = gradients("cuda")
    assert counts(device) == (0, 0, 0)
    assert isinstance(on_device, DeviceTensor)
    assert torch.equal(on_device.host, gradients("cpu"))


@pytest.mark.parametrize("make", [torch.ones, lambda size: torch.tensor([1.0] * size)])
def test_vmap_and_grad_refuse_tensors_on_two_devices(device: SimulatedDevice, make: Callable[[int], Tensor]) -> None:
    with pytest.raises(AssertionError, match="tensors on two devices at tests/device/"):
        torch.func.vmap(torch.func.grad(lambda row: (row * make(3)).sum()))(torch.ones(2, 3, device=CUDA))


def test_tensors_in_vmap_and_grad_name_their_device(device: SimulatedDevice) -> None:
    def product(row: Tensor) -> Tensor:
        assert row.device == CUDA
        return (row * torch.arange(3.0, device=row.device)).sum()

    gradients = torch.func.vmap(torch.func.grad(product))(torch.ones(2, 3, device=CUDA))
    assert gradients.tolist() == [[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]]


def test_a_copy_to_the_device_in_vmap_and_grad_is_counted(device: SimulatedDevice) -> None:
    rows = torch.ones(2, 3, device=CUDA)
    device.clear()
    torch.func.vmap(torch.func.grad(lambda row: (row * torch.tensor(2.0, device=CUDA)).sum()))(rows)
    assert counts(device) == (0, 0, 1)


def test_a_captured_graph_computes_nothing_until_it_is_replayed(device: SimulatedDevice) -> None:
    x, y = torch.ones(3, device=CUDA), torch.zeros(3, device=CUDA)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=torch.cuda.graph_pool_handle()):
        y.copy_(x * 2 + y)
    assert y.tolist() == [0.0, 0.0, 0.0]
    device.clear()
    for _ in range(3):
        graph.replay()
    assert device.launches == 3
    assert y.tolist() == [6.0, 6.0, 6.0]


def test_work_that_must_not_wait_may_select_rows(device: SimulatedDevice) -> None:
    x, rows = torch.arange(1, 4, device=CUDA).float(), torch.arange(2, device=CUDA)
    with device.without_waits():
        chosen, put = x[rows], x.index_put_((rows,), x[rows] * 2)
    assert (chosen.tolist(), put.tolist()) == ([1.0, 2.0], [2.0, 4.0, 3.0])


def test_work_that_waits_cannot_be_captured(device: SimulatedDevice) -> None:
    x = torch.ones(3, device=CUDA)
    with pytest.raises(WaitsForDeviceError), torch.cuda.graph(torch.cuda.CUDAGraph()):
        x.mul_(float(x.sum()))


def test_streams_and_events_wait_on_the_device_and_not_on_the_host(device: SimulatedDevice) -> None:
    stream, event = torch.cuda.Stream(CUDA), torch.cuda.Event()
    stream.wait_stream(torch.cuda.current_stream(CUDA))
    with torch.cuda.stream(stream):
        x = torch.ones(3, device=CUDA)
        event.record(stream)
    torch.cuda.current_stream(CUDA).wait_event(event)
    x.record_stream(stream)
    assert counts(device) == (0, 0, 0)
    event.synchronize()
    stream.synchronize()
    assert counts(device) == (2, 0, 0)


def test_threads_that_start_in_the_block_compute_on_the_device(device: SimulatedDevice) -> None:
    made: list[Tensor] = []
    thread = threading.Thread(target=lambda: made.append(torch.ones(2, device=CUDA) * 2))
    thread.start()
    thread.join()
    assert made[0].tolist() == [2.0, 2.0]
    assert counts(device) == (1, 1, 0)
