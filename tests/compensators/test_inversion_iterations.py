"""Iterations without the host: no value is read in them, and a captured graph gives the same bits."""

import warnings
from typing import Any, Literal, get_args, get_origin

import pytest
import torch
from torch import Tensor

from support.compensation import network, numbers, settings
from support.simulated_device import CPU, CUDA, simulated_device
from support.simulated_graphs import SimulatedGraphs
from unstale.compensators.inversion import engine as engine_module
from unstale.compensators.inversion import iterations
from unstale.compensators.inversion.engine import Engine
from unstale.compensators.inversion.reconstruction import Reconstruction
from unstale.compensators.inversion.settings import InversionSettings
from unstale.compensators.inversion.state import Inversion, Target
from unstale.compensators.inversion.stopping import loss_checkpoints
from unstale.compensators.network import LocalSteps, Network
from unstale.graphs import CudaGraphs, Graphs, Work
from unstale.learner.device import set_precision
from unstale.training.models import build

LIKE = LocalSteps(steps=2, momentum=0.5, weight_decay=0.01, mu=0.1)
ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def cnn(device: torch.device | str = CPU) -> Network:
    return Network(build("digits_cnn", (1, 8, 8), 10, seed=1).to(device), (1, 8, 8), 10)


def begun(
    net: Network, seed: int = 0, *, examples: int = 4, iterations: int = 20, device: torch.device | str = CPU
) -> Inversion:
    parts = [net.parts(numbers(net.dimension, seed=seed + more, scale=0.1).to(device)) for more in (0, 100)]
    first = Reconstruction(
        inputs_rX=numbers(examples, *net.input_shape, seed=seed).clamp(-1.9, 1.9),
        labels_rC=numbers(examples, net.classes, seed=seed + 500),
    )
    return Inversion(
        target=Target(base=parts[0], update=parts[1], steps=2, rate=0.1 * (seed + 1)),
        iterations=iterations,
        now=first.to(device),
        loss_checkpoints=loss_checkpoints(iterations),
    )


def engine(net: Network, graphs: Graphs | None = None, **given: Any) -> Engine:
    return Engine(net, LIKE, settings(**{"batch_clients": 2, "schedule": "steps", **given}), graphs)


def results(*inversions: Inversion) -> list[Tensor]:
    """All tensors, and those of the kept iterates."""
    kept = [one.kept[at] for one in inversions for at in sorted(one.kept)]
    return [
        *(tensor for one in inversions for tensor in one.state),
        *(tensor for each in kept for tensor in (each.inputs_rX, each.labels_rC)),
    ]


def iterated(subject: Engine, *inversions: Inversion, times: int) -> list[Tensor]:
    for _ in range(times):
        subject.iterate(inversions)
    return results(*inversions)


def assert_same_bits(some: list[Tensor], others: list[Tensor]) -> None:
    assert all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


ELSEWHERE = ("labels_start", "start", "strength", "switch")
"""Choices that no iteration depends on."""

CHOICES = [
    {name: value, **({"labels_start": "normal"} if value == "bce-raw" else {})}
    for name, field in InversionSettings.model_fields.items()
    if get_origin(field.annotation) is Literal and name not in ELSEWHERE
    for value in get_args(field.annotation)
]
"""Each value of each setting with named values."""


@pytest.mark.parametrize("given", CHOICES, ids=lambda given: "-".join(given.values()))
def test_an_iteration_does_not_wait_for_the_device(given: dict[str, Any]) -> None:
    # The first disparity is not finite. Iterations before the capture of a graph, the capture, and a replay.
    def computed(where: torch.device) -> list[Tensor]:
        net = cnn(where)
        some = [begun(net, seed, device=where) for seed in (0, 1)]
        some[0].target.update[0].fill_(torch.inf)
        subject = engine(net, **given)
        iterated(subject, *some, times=1)  # loads the inversions, and the factors of the next ones
        device.clear()
        with device.without_waits():
            return iterated(subject, *some, times=iterations.WARM_UP + 1)

    with simulated_device() as device:
        on_device = computed(CUDA)
        launches = device.launches
        on_cpu = computed(CPU)
        assert all(one.device == CUDA for one in on_device)
        on_host = [one.cpu() for one in on_device]
    torch.testing.assert_close(on_host, on_cpu, rtol=0, atol=0, equal_nan=True)
    assert launches > 300


@pytest.mark.parametrize("disparity", ["l1", "cosine"])
def test_replayed_iterations_have_the_bits_of_eager_ones(disparity: str) -> None:
    # Groups of 2, 2 and 1 take turns: after the warm-up of each, every iteration is a replay.
    net, graphs = cnn(), SimulatedGraphs()
    eager = iterated(engine(net, disparity=disparity), *(begun(net, seed) for seed in range(5)), times=20)
    captured = iterated(engine(net, graphs, disparity=disparity), *(begun(net, seed) for seed in range(5)), times=20)
    assert_same_bits(eager, captured)
    warm_ups = 3 * iterations.WARM_UP
    assert graphs.done.count("capture") == 3
    assert graphs.done.count("warm-up") == warm_ups
    assert graphs.done.count("replay") == 3 * 20 - warm_ups


def test_without_a_usable_graph_all_iterations_are_eager() -> None:
    net, graphs = network(), SimulatedGraphs(refuses=True)
    eager = iterated(engine(net), begun(net), times=10)
    assert_same_bits(eager, iterated(engine(net, graphs), begun(net), times=10))
    assert graphs.done.count("warm-up") == 10
    assert graphs.done.count("capture") == 1


def test_one_graph_serves_later_groups_of_the_same_shape() -> None:
    net, graphs = network(), SimulatedGraphs()
    subject = engine(net, graphs)
    for seed in range(3):
        one = begun(net, seed)
        assert_same_bits(iterated(subject, one, times=8), iterated(engine(net), begun(net, seed), times=8))
        subject.release([one])
    assert graphs.done.count("capture") == 1
    assert graphs.done.count("warm-up") == iterations.WARM_UP


def test_results_that_were_read_are_not_changed_by_later_iterations() -> None:
    net = network()
    one, subject = begun(net), engine(net, SimulatedGraphs())
    before = iterated(subject, one, times=10)
    copies = [tensor.clone() for tensor in before]
    iterated(subject, one, times=5)
    assert_same_bits(before, copies)


def test_a_released_inversion_continues_from_its_state() -> None:
    net = network()
    one, other, subject = begun(net), begun(net), engine(net, SimulatedGraphs())
    iterated(subject, one, times=6)
    subject.release([one])
    iterated(subject, begun(net, 3), times=6)  # uses the buffers meanwhile
    assert_same_bits(iterated(engine(net), other, times=12), iterated(subject, one, times=6))


def test_a_new_start_replaces_the_state_on_the_device() -> None:
    net = network()
    one, other, subject = begun(net), begun(net, iterations=40), engine(net, schedule="constant")
    iterated(subject, one, times=3)
    other.done = one.done
    one.now = other.now
    first, second = iterated(subject, one, times=2), iterated(engine(net, schedule="constant"), other, times=2)
    assert_same_bits(first[:9], second[:9])


@pytest.mark.parametrize("given", [None, SimulatedGraphs])
def test_learning_rates_and_corrections_follow_the_iterations(monkeypatch: pytest.MonkeyPatch, given: Any) -> None:
    # With copies of four and of 64 at once; and the plan changes after 6, so that the rate falls earlier.
    def computed(ahead: int) -> list[Tensor]:
        monkeypatch.setattr(iterations, "AHEAD", ahead)
        net = network()
        one, subject = begun(net, iterations=30), engine(net, given and given())
        iterated(subject, one, times=6)
        one.iterations = 12
        return iterated(subject, one, times=6)

    assert_same_bits(computed(1), computed(4))
    assert_same_bits(computed(1), computed(64))


def test_the_host_is_at_most_32_iterations_ahead_of_the_device() -> None:
    net, graphs = network(), SimulatedGraphs()
    iterated(engine(net, graphs), begun(net, iterations=100), times=100)
    behind = 0
    marked: list[int] = []
    for done in graphs.done:
        behind += done == "replay"
        if done == "mark":
            marked.append(behind)
        if done == "wait":
            behind -= marked.pop(0)
            marked = [0 for _ in marked]
        assert behind <= 2 * iterations.PACE


def test_graphs_that_were_not_used_for_longest_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "GRAPHS_MAX", 2)
    net, graphs = network(), SimulatedGraphs()
    subject = engine(net, graphs)
    ones = {count: begun(net, examples=count) for count in (2, 3, 4)}
    for count in (2, 3, 4, 3, 2):
        iterated(subject, ones[count], times=4)
    assert graphs.done.count("capture") == 4  # of 2, 3 and 4, and of 2 again
    for count in (2, 4):
        done = ones[count].done
        assert_same_bits(iterated(engine(net), begun(net, examples=count), times=done), results(ones[count]))


class _NoGraphs(CudaGraphs):
    def capture(self, work: Work) -> Work | None:
        return None


@pytest.mark.gpu
@ON_GPU
def test_on_cuda_a_captured_graph_gives_the_results_of_eager_iterations() -> None:
    net = cnn("cuda")
    device = torch.device("cuda")
    some, others = ([begun(net, seed, device="cuda") for seed in range(3)] for _ in range(2))
    set_precision(device, "strict")
    eager = iterated(engine(net, _NoGraphs(device)), *some, times=20)
    captured = iterated(engine(net), *others, times=20)
    for one, other in zip(eager, captured, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


@pytest.mark.gpu
@ON_GPU
def test_on_cuda_an_iteration_does_not_wait_for_the_device() -> None:
    net = cnn("cuda")
    some, subject = [begun(net, seed, device="cuda") for seed in range(2)], engine(net)
    iterated(subject, *some, times=5)
    try:
        with warnings.catch_warnings(action="ignore"):  # PyTorch calls this mode a prototype
            torch.cuda.set_sync_debug_mode("error")
        for _ in range(10):
            subject.iterate(some)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(bool(tensor.isfinite().all()) for tensor in results(*some))
