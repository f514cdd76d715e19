"""Inversions on other machines: sent, awaited, counted and cancelled groups."""

from concurrent.futures import Future, wait
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load, save

from support.compensation import PlayedClock, context, inversion, network, received, settings, stale_round
from unstale.compensators.inversion import remote_inversion
from unstale.compensators.inversion.engine import Engine
from unstale.compensators.inversion.remote_inversion import Tensors, computed
from unstale.errors import WorkerLostError

ITERATIONS = 6
TEN = tuple(received(client_id, staleness=1 + client_id % 3) for client_id in range(10))
AGAIN = tuple(received(client_id, base_version=1, staleness=2) for client_id in range(5, 15))
"""Half of them start from their last result, with fewer iterations."""


class SimulatedMachines:
    """Other machines, simulated in this process: they compute when a round waits for them.

    lost: reason for the loss of all groups, None for no loss. slow: no group ends in time. seconds: per group.
    """

    def __init__(self, *, lost: str | None = None, slow: bool = False, seconds: float = 1.5, **given) -> None:
        where = context()
        self._network = where.network
        self._engine = Engine(self._network, where.steps, settings(**given))
        self.lost, self.slow, self.seconds = lost, slow, seconds
        self.groups: list[Tensors] = []
        self.cancelled: list[int] = []
        self.together: int | None = None
        self.device = torch.device("cpu")

    def submit(self, group: bytes) -> "GroupFuture":
        self.groups.append(load(group))
        return GroupFuture(self, len(self.groups) - 1)

    def results(self, number: int) -> Tensors:
        results = computed(self.groups[number], self._network, self._engine, self.device)
        results["seconds"] = torch.tensor(self.seconds, dtype=torch.float64)
        if self.together is not None:
            results["together"] = torch.tensor(self.together)
        return results

    def stop(self) -> None:
        pytest.fail("stop was not requested")

    @property
    def sizes(self) -> list[int]:
        return [len(group["update_Bd"]) for group in self.groups]


class GroupFuture(Future):
    def __init__(self, machines: SimulatedMachines, number: int) -> None:
        super().__init__()
        self.number = number
        self._machines = machines

    def compute(self) -> None:
        if self._machines.lost is not None:
            self.set_exception(WorkerLostError(self._machines.lost))
        elif not self._machines.slow:
            self.set_result(save(self._machines.results(self.number)))

    def cancel(self) -> bool:
        self._machines.cancelled.append(self.number)
        return super().cancel()


@pytest.fixture(autouse=True)
def waited(monkeypatch) -> list[tuple[list[int], float | None]]:
    """Group numbers and time limit of each wait."""
    waits = []

    def simulated_wait(futures: list[GroupFuture], longest_s: float | None):
        waits.append(([future.number for future in futures], longest_s))
        for future in futures:
            future.compute()
        return wait(futures, 0.0)

    monkeypatch.setattr(remote_inversion, "wait", simulated_wait)
    return waits


def inverting(elsewhere: SimulatedMachines | None = None, *, clock: PlayedClock | None = None, **given):
    where = replace(context(network(), clock=clock), executor=elsewhere)
    return inversion(where=where, **{"iterations": ITERATIONS, **given})


def spent(subject) -> float:
    return subject.state_dict()["inversions"]["iterations"]


def assert_same_bits(here: dict, there: dict) -> None:
    assert here["estimates"].keys() == there["estimates"].keys()
    for place, one in here["estimates"].items():
        other = there["estimates"][place]
        assert torch.equal(one["estimate"], other["estimate"])
        assert one["kept"].keys() == other["kept"].keys()
        for mark, kept in one["kept"].items():
            assert torch.equal(kept["inputs"], other["kept"][mark]["inputs"])
            assert torch.equal(kept["labels"], other["kept"][mark]["labels"])
        assert (one["iterations"], one["disparity"]) == (other["iterations"], other["disparity"])


@pytest.mark.parametrize(("batch_clients", "given"), [(1, {}), (4, {}), (8, {}), (8, {"adapt": True})], ids=str)
def test_remote_inversion_gives_the_bits_of_local_groups(batch_clients, given):
    given = {"batch_clients": batch_clients, **given}
    elsewhere = SimulatedMachines(**given)
    here, there = inverting(**given), inverting(elsewhere, **given)
    for version, updates in ((3, TEN), (4, AGAIN)):
        round_ = stale_round(*updates, version=version)
        of_here, of_there = here.make(round_), there.make(round_)
        assert len(of_here["estimates"]) == 10
        assert_same_bits(of_here, of_there)
        here.take(round_, of_here)
        there.take(round_, of_there)
        assert spent(here) == spent(there)
    full, rest = divmod(10, batch_clients)
    assert elsewhere.sizes == 2 * ([batch_clients] * full + [rest] * bool(rest))


def test_an_update_is_sent_at_once_and_awaited_with_its_round(waited):
    elsewhere = SimulatedMachines()
    subject = inverting(elsewhere)
    for update in TEN[:3]:
        subject.begin(update)
    assert not subject.work()
    assert (elsewhere.sizes, waited) == ([3], [])
    subject.work()
    assert elsewhere.sizes == [3], "once"
    result = subject.make(stale_round(*TEN[:3]))
    assert waited == [([0], None)]
    assert_same_bits(inverting().make(stale_round(*TEN[:3])), result)


def test_a_group_with_updates_of_two_rounds_is_awaited_once(waited):
    elsewhere = SimulatedMachines()
    subject = inverting(elsewhere)
    for update in TEN[:2]:
        subject.begin(update)
    subject.work()
    for place in (0, 1):
        assert subject.make(stale_round(TEN[place]))["estimates"][0]["iterations"] == ITERATIONS
    assert elsewhere.sizes == [2]
    assert [numbers for numbers, _ in waited] == [[0], []]


def test_a_round_waits_for_its_remaining_seconds(waited):
    clock, elsewhere = PlayedClock(), SimulatedMachines(slow=True)
    subject = inverting(elsewhere, clock=clock, seconds_per_round=2.0)
    submit = elsewhere.submit

    def in_half_a_second(group: bytes) -> GroupFuture:
        clock.now_s += 0.5
        return submit(group)

    elsewhere.submit = in_half_a_second
    result = subject.make(stale_round(*TEN[:2]))
    assert [longest_s for _, longest_s in waited] == [1.5]
    assert (result["estimates"], result["fallbacks"]) == ({}, {"budget": 2})
    assert elsewhere.cancelled == [0]


def test_a_group_awaited_by_another_round_is_not_cancelled():
    elsewhere = SimulatedMachines(slow=True)
    subject = inverting(elsewhere)
    for update in TEN[:2]:
        subject.begin(update)
    subject.work()
    assert subject.make(stale_round(TEN[0]))["fallbacks"] == {"budget": 1}
    assert elsewhere.cancelled == []
    elsewhere.slow = False
    assert subject.make(stale_round(TEN[1]))["estimates"][0]["iterations"] == ITERATIONS


def test_an_overdue_group_is_cancelled(waited):
    elsewhere = SimulatedMachines(slow=True)
    subject = inverting(elsewhere)
    for update in TEN[:2]:
        subject.begin(update)
    subject.work()
    for update in TEN[:2]:
        assert subject.make(stale_round(update))["fallbacks"] == {"budget": 1}
    assert elsewhere.cancelled == [0]
    elsewhere.slow = False
    assert subject.make(stale_round(TEN[2]))["estimates"][0]["iterations"] == ITERATIONS
    assert waited[-1][0] == [1], "no other group is left"


def test_a_group_that_its_round_does_not_invert_is_cancelled():
    elsewhere = SimulatedMachines()
    subject = inverting(elsewhere, last_round=4)
    subject.begin(TEN[0])
    subject.work()
    subject.make(stale_round(TEN[0], version=4))
    assert elsewhere.cancelled == [0]


def test_the_requested_results_are_returned():
    elsewhere = SimulatedMachines(adapt=False)
    subject = inverting(elsewhere, adapt=False, iterations=20)
    subject.make(stale_round(TEN[0]))
    assert elsewhere.results(0)["marks_M"].tolist() == [20]


def test_groups_stay_within_the_iterations_of_the_round():
    elsewhere = SimulatedMachines()
    subject = inverting(elsewhere, iterations_per_round=2 * ITERATIONS + 1)
    result = subject.make(stale_round(*TEN[:3]))
    assert elsewhere.sizes == [2]
    assert sorted(result["estimates"]) == [1, 2], "the most stale"
    assert (result["fallbacks"], result["spent"][0]) == ({"budget": 1}, 2 * ITERATIONS)


def test_groups_stay_within_the_iterations_of_the_run_before_a_round_closes():
    elsewhere = SimulatedMachines()
    subject = inverting(elsewhere, iterations_total=ITERATIONS)
    for update in TEN[:2]:
        subject.begin(update)
        subject.work()
    assert elsewhere.sizes == [1]
    result = subject.make(stale_round(*TEN[:2]))
    assert list(result["estimates"]) == [0]
    assert (result["fallbacks"], result["spent"][0]) == ({"budget": 1}, ITERATIONS)


def test_remote_seconds_count_toward_a_limit_in_seconds():
    clock = PlayedClock()
    timed, virtual = inverting(SimulatedMachines(), clock=clock), inverting(SimulatedMachines())
    round_ = stale_round(*TEN[:2])
    assert timed.make(round_)["spent"] == [2 * ITERATIONS, 1.5]
    assert virtual.make(round_)["spent"] == [2 * ITERATIONS, 0.0]


@pytest.mark.parametrize("of", [{"slow": True}, {"lost": "all machines are off"}], ids=["late", "lost"])
def test_seconds_waited_without_a_result_count(of, monkeypatch):
    clock, elsewhere = PlayedClock(), SimulatedMachines(**of)
    subject = inverting(elsewhere, clock=clock, seconds_per_round=4.0, seconds_total=6.0)
    simulated_wait = remote_inversion.wait

    def for_four_seconds(futures, longest_s):
        clock.now_s += 4.0
        return simulated_wait(futures, longest_s)

    monkeypatch.setattr(remote_inversion, "wait", for_four_seconds)
    spent_s = [subject.make(stale_round(TEN[place]))["spent"][1] for place in range(3)]
    assert spent_s == [4.0, 8.0, 8.0]
    assert len(elsewhere.groups) == 2, "the run's seconds are used up"


def test_a_lost_inversion_is_compensated_to_first_order():
    subject = inverting(SimulatedMachines(lost="all machines are off"))
    round_ = stale_round(*TEN[:2])
    outcome = subject.take(round_, subject.make(round_))
    assert [what.method for what in outcome.updates] == ["first-order", "first-order"]
    assert outcome.fallbacks == {"worker-lost": 2}
    assert outcome.notes == [
        "an inversion that was computed elsewhere is lost (all machines are off); such updates are compensated to "
        "first order"
    ]


def test_too_little_remote_memory_is_reported_once():
    elsewhere = SimulatedMachines()
    elsewhere.together = 2
    subject = inverting(elsewhere)
    sentence = "the device's memory is too small to invert 3 updates together; from now on at most 2 are"
    assert subject.make(stale_round(*TEN[:3]))["notes"] == [sentence]
    assert subject.make(stale_round(*TEN[3:6]))["notes"] == []


def test_an_update_too_large_for_remote_memory_falls_back(monkeypatch):
    elsewhere = SimulatedMachines()

    def too_large(self, some):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(Engine, "iterate", too_large)
    assert inverting(elsewhere).make(stale_round(*TEN[:2]))["fallbacks"] == {"memory": 2}


def test_a_group_that_cannot_be_loaded_remotely_falls_back(monkeypatch):
    elsewhere = SimulatedMachines()
    unpack = remote_inversion._unpacked

    def too_large(group, net, device):
        if elsewhere.device == device:
            raise torch.OutOfMemoryError
        return unpack(group, net, device)

    monkeypatch.setattr(remote_inversion, "_unpacked", too_large)
    elsewhere.device = torch.device("cpu", 0)  # another device than the group's
    result = inverting(elsewhere).make(stale_round(*TEN[:2]))
    assert (result["fallbacks"], result["spent"][0]) == ({"memory": 2}, 0)
