"""Each update of a client counts at most once, for any number of unacknowledged updates and any delay of copies.

A client may hold more of them (`limits.HOLDING_MAX`) than the server stores verdicts: a copy whose verdict is
forgotten gets another verdict than the first one, without effect.
"""

from hypothesis import given
from hypothesis import strategies as st

from support.played import PlayedServer
from unstale.coordinator.actions import Outcome
from unstale.coordinator.admission import REMEMBERED_VERDICTS, TaskHistory, Verdict, validate
from unstale.coordinator.events import UpdateArrived
from unstale_proto.limits import HOLDING_MAX
from unstale_proto.messages import Ack, Task

CLIENTS, CLIENT = 3, 1

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("answer"), st.sampled_from([None, "non-finite"])),  # the open task; its defect
        st.tuples(st.just("take back"), st.none()),
        st.tuples(st.just("copy"), st.integers(min_value=0, max_value=99)),  # its task, counted from the newest
    ),
    max_size=120,
)


def arrived(task_id: int, defect: str | None) -> UpdateArrived:
    return UpdateArrived(client_id=CLIENT, task_id=task_id, base_version=0, handle=0, at_s=0.0, defect=defect)


@given(steps=STEPS)
def test_no_update_is_accepted_twice_and_a_stored_verdict_never_changes(
    steps: list[tuple[str, str | int | None]],
) -> None:
    tasks = TaskHistory(CLIENT, CLIENTS)
    given_ids = [tasks.give()]
    accepted: set[int] = set()
    first: dict[int, Verdict] = {}
    for kind, detail in steps:
        if kind == "take back":
            tasks.open_id = None
        else:
            back = detail if isinstance(detail, int) else 0
            task_id = given_ids[-1 - back % len(given_ids)]
            defect = detail if isinstance(detail, str) else None
            newer = sum(one > task_id for one in first)
            was_open = tasks.open_id == task_id
            verdict, repeated = validate(tasks, 0, arrived(task_id, defect), finished=False)
            if verdict.outcome is Outcome.ACCEPTED and not repeated:
                assert was_open and task_id not in accepted
                accepted.add(task_id)
            if repeated or (task_id in first and newer < REMEMBERED_VERDICTS):
                assert repeated and verdict == first[task_id]
            first.setdefault(task_id, verdict)
            if was_open:
                tasks.open_id = None
        if tasks.open_id is None:
            given_ids.append(tasks.give())
    assert len(tasks.verdicts) <= REMEMBERED_VERDICTS


def test_each_of_the_most_unacknowledged_updates_of_a_client_counts_once() -> None:
    server = PlayedServer(rounds=HOLDING_MAX + 1)
    client = server.client(0)
    task, unacknowledged = client.task(), []
    for _ in range(HOLDING_MAX - 1):
        unacknowledged.append(task)
        client.say_update(task)
        server.compute()
        (task,) = [message for message in client.hears() if isinstance(message, Task)]  # every ack is lost
    before = server.coordinator.accepted
    assert before == len(unacknowledged) > REMEMBERED_VERDICTS
    client.join(holding=(*(one.task_id for one in unacknowledged), task.task_id))
    client.hears()
    verdicts = []
    for one in unacknowledged[::2] + unacknowledged[1::2]:  # in a random order
        client.say_update(one)
        ack = client.hear(Ack)
        verdicts.append((one.number, ack.outcome, ack.first_outcome, ack.reason))
    remembered = range(len(unacknowledged) - REMEMBERED_VERDICTS, len(unacknowledged))
    assert all(
        verdict
        == (("duplicate", "accepted", None) if number in remembered else ("rejected", "rejected", "expired-task"))
        for number, *rest in verdicts
        for verdict in [tuple(rest)]
    )
    assert server.coordinator.accepted == before
    assert server.coordinator.aggregated == before
    assert client.answer(task).outcome == "accepted"  # and its open task is unchanged
