"""Turns in a few slots: what owners get, in a time that is simulated. A payload is 40 units of what moves at the least
rate in a second, and the longest stand-still is 10 s."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import pytest

from unstale.server.slot_scheduler import SlotScheduler

RATE = 100  # bytes/s, the least
GRACE_S = 10.0
PAYLOAD = 4000  # bytes: 40 s at the least rate
STEP_S = 0.25


def turns_of(owner_of: Callable[[int], Hashable], places: int = 2, slow_places: int = 0) -> SlotScheduler:
    return SlotScheduler(
        owner_of,
        slots=places,
        grace_s=GRACE_S,
        chunk_bytes=int(GRACE_S * RATE),
        payload_bytes=PAYLOAD,
        slow_slots=slow_places,
    )


@dataclass
class Client:
    """Sends a payload, rests, and sends the next, for ever. per_s: bytes in a second. rest_s: between payloads.
    finished_s: when payloads were done."""

    per_s: float
    rest_s: float = 0.5
    moved: float = 0.0
    again_s: float = 0.0
    finished_s: list[float] = field(default_factory=list)


class Link:
    """Clients that send in turn. Of a payload what has moved is kept when a turn is lost, or nothing of it.

    rooms: of a client's payload, in the order of its payloads.
    """

    def __init__(
        self,
        scheduler: SlotScheduler,
        clients: dict[int, Client],
        *,
        room_of: Callable[[int, int], Hashable] = lambda client_id, _: client_id,
        keeps: bool = True,
    ) -> None:
        self.scheduler, self.clients, self.now_s = scheduler, clients, 0.0
        self.room_of, self.keeps = room_of, keeps
        self.busy: set[int] = set()  # wait or have a slot
        self.have_slots: set[int] = set()

    def run(self, until_s: float) -> None:
        while self.now_s < until_s:
            for client_id, client in self.clients.items():
                if client_id not in self.busy and self.now_s >= client.again_s:
                    room = self.room_of(client_id, len(client.finished_s))
                    self.scheduler.wait(client_id, room, self.now_s)
                    self.busy.add(client_id)
            lost, got = self.scheduler.assign(self.now_s)
            for client_id in lost:
                self.clients[client_id].moved *= self.keeps
            self.have_slots = (self.have_slots - set(lost)) | set(got)
            self.now_s += STEP_S
            for client_id, client in self.clients.items():
                if client_id in self.have_slots:
                    self._move(client_id, client)

    def _move(self, client_id: int, client: Client) -> None:
        before = int(client.moved)
        client.moved += client.per_s * STEP_S
        if client.moved >= PAYLOAD:
            self.scheduler.leave(client_id, self.now_s, finished=True)
            self.busy.remove(client_id)
            self.have_slots.remove(client_id)
            client.moved, client.again_s = 0.0, self.now_s + client.rest_s
            client.finished_s.append(self.now_s)
        elif int(client.moved) > before:
            self.scheduler.on_bytes(client_id, int(client.moved) - before, self.now_s)


def honest(count: int, rest_s: float = 0.5) -> dict[int, Client]:
    """Clients that need half a second for a payload, and rest then: with 0.5 s four of them fill two places."""
    return {client_id: Client(per_s=2 * PAYLOAD, rest_s=rest_s) for client_id in range(count)}


def finished(clients: dict[int, Client], ids: range) -> int:
    return sum(len(clients[client_id].finished_s) for client_id in ids)


def by_client(client_id: int) -> Hashable:
    return client_id


@pytest.mark.parametrize(("rest_s", "share"), [(0.5, 0.5), (3.5, 0.9)])
def test_two_that_move_a_byte_every_four_seconds_leave_the_others_their_share(rest_s: float, share: float) -> None:
    alone = honest(4, rest_s)
    Link(turns_of(by_client), alone).run(300.0)
    attacked = {**honest(4, rest_s), 8: Client(per_s=0.25), 9: Client(per_s=0.25)}
    Link(turns_of(by_client), attacked).run(300.0)
    assert finished(attacked, range(4)) >= share * finished(alone, range(4))


def test_two_owners_that_move_at_the_least_rate_for_ever_leave_the_others_at_least_half() -> None:
    alone = honest(4)
    Link(turns_of(by_client), alone).run(600.0)
    attacked = {**honest(4), 8: Client(per_s=RATE * 1.01), 9: Client(per_s=RATE * 1.01)}
    Link(turns_of(by_client), attacked).run(600.0)
    assert finished(attacked, range(4)) >= 0.5 * finished(alone, range(4))


def test_a_hundred_clients_of_one_key_have_one_share() -> None:
    def owner_of(client_id: int) -> Hashable:
        return client_id if client_id < 4 else "key"

    alone = honest(4)
    Link(turns_of(owner_of), alone).run(200.0)
    for per_s in (0.25, RATE * 1.01, 2 * PAYLOAD):
        attacked = {**honest(4), **{client_id: Client(per_s=per_s) for client_id in range(4, 104)}}
        Link(turns_of(owner_of), attacked).run(200.0)
        assert finished(attacked, range(4)) >= 0.5 * finished(alone, range(4)), per_s


def test_a_client_at_a_tenth_of_the_least_rate_gets_through_among_others_that_always_wait() -> None:
    clients = {client_id: Client(per_s=2 * PAYLOAD, rest_s=0.0) for client_id in range(6)}
    clients[9] = Client(per_s=RATE / 10)
    Link(turns_of(by_client), clients).run(3000.0)
    assert clients[9].finished_s  # it needs 400 s of a place


def test_an_owner_that_stalls_after_a_quick_start_keeps_its_turn_for_the_grace_period() -> None:
    scheduler = turns_of(by_client, places=1)
    scheduler.wait(0, 0, 0.0)
    assert scheduler.assign(0.0) == ([], [0])
    scheduler.on_bytes(0, PAYLOAD - 1, 1.0)
    scheduler.wait(1, 1, 1.0)
    assert scheduler.assign(10.9) == ([], [])
    assert scheduler.assign(11.0 + GRACE_S / 8) == ([0], [1])


def test_an_owner_keeps_its_turn_while_no_other_waits() -> None:
    scheduler = turns_of(by_client, places=1)
    scheduler.wait(0, 0, 0.0)
    scheduler.assign(0.0)
    assert scheduler.due_s() is None
    assert scheduler.assign(1000.0) == ([], [])
    assert not scheduler.goes_on(0, 1000.0)
    scheduler.wait(1, 1, 1000.0)
    assert scheduler.assign(1000.0) == ([0], [1])


def test_an_owner_that_used_slots_less_replaces_one_that_used_them_long() -> None:
    scheduler = turns_of(by_client, places=1)
    scheduler.wait(0, 0, 0.0)
    scheduler.assign(0.0)
    scheduler.leave(0, 100.0)
    scheduler.wait(0, 0, 100.0)
    scheduler.assign(100.0)
    scheduler.wait(1, 1, 100.5)
    assert scheduler.assign(100.5) == ([0], [1])
    scheduler.leave(1, 101.0)
    assert scheduler.assign(101.0) == ([], [0])


def test_owners_whose_transfers_take_no_time_do_not_overtake_another_one_for_ever() -> None:
    scheduler = turns_of(by_client, places=1)
    scheduler.wait(0, 0, 0.0)
    scheduler.assign(0.0)
    scheduler.leave(0, 100.0)  # its use is 200 (1 - e^-0.5) = 78.7 s
    for second in range(100, 400):
        for client_id in range(3):
            scheduler.wait(client_id, client_id, float(second))
        _, (chosen,) = scheduler.assign(float(second))
        if chosen == 0:
            break
        scheduler.leave(chosen, float(second), finished=True)
    # From second to second two of them wait, so that 0 is owed 0.5 t / 2; 78.7 e^(-t / 200) = 0.5 t / 2 at t = 149.04
    assert second == 250


# -------------------------------------------------------------------------------------------- rooms that many may be in


def test_a_room_is_open_for_all_who_want_it() -> None:
    scheduler = turns_of(by_client, places=1)
    for client_id in range(3):
        scheduler.wait(client_id, "v", 0.0)
    scheduler.wait(9, "w", 0.0)
    assert scheduler.assign(0.0) == ([], [0, 1, 2])
    scheduler.leave(0, 1.0)
    scheduler.leave(1, 1.0)
    assert scheduler.assign(1.0) == ([], [])
    scheduler.leave(2, 2.0)
    assert scheduler.assign(2.0) == ([], [9])


def test_a_room_is_lost_only_when_all_in_it_are_behind() -> None:
    scheduler = turns_of(by_client, places=1)
    scheduler.wait(0, "v", 0.0)
    scheduler.wait(1, "v", 0.0)
    scheduler.assign(0.0)
    scheduler.wait(9, "w", 0.0)
    scheduler.on_bytes(1, 500, 8.0)
    assert scheduler.assign(12.0) == ([], [])
    assert scheduler.assign(18.0) == ([0, 1], [9])


def test_two_slow_ones_do_not_hold_two_versions_and_one_may_hold_one() -> None:
    scheduler = turns_of(by_client, places=2, slow_places=1)
    scheduler.wait(0, "v", 0.0)
    scheduler.wait(1, "w", 0.0)
    scheduler.assign(0.0)
    scheduler.wait(9, "x", 5.0)
    assert scheduler.assign(5.0) == ([], [])
    lost, got = scheduler.assign(10.0)
    assert (len(lost), got) == (1, [9])
    scheduler.on_bytes(9, 100, 19.0)
    assert scheduler.assign(20.0) == ([], [])  # twice as long, in a slow place


def versions(client_id: int, number: int) -> Hashable:
    """Each payload of a client is another version, as where rounds never rest."""
    return client_id, number


def test_a_slow_download_gets_through_though_nothing_of_a_lost_one_is_kept() -> None:
    clients = {client_id: Client(per_s=2 * PAYLOAD, rest_s=0.0) for client_id in range(4)}
    clients[9] = Client(per_s=RATE / 10)
    Link(turns_of(by_client, slow_places=1), clients, room_of=versions, keeps=False).run(3000.0)
    assert clients[9].finished_s


def test_two_downloads_that_drip_leave_the_others_at_least_half() -> None:
    alone = honest(4)
    Link(turns_of(by_client, slow_places=1), alone, room_of=versions, keeps=False).run(600.0)
    attacked = {**honest(4), 8: Client(per_s=0.25), 9: Client(per_s=0.25)}
    Link(turns_of(by_client, slow_places=1), attacked, room_of=versions, keeps=False).run(600.0)
    assert finished(attacked, range(4)) >= 0.5 * finished(alone, range(4))
