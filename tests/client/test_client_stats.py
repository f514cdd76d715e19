"""The metrics of a client process, from its messages."""

from support.wire import RUN, update, welcome
from unstale.client.stats import ClientStats
from unstale.metrics import catalogue
from unstale.metrics.observe import Observation
from unstale_proto.messages import Ack

CLIENT = 7
OTHER_RUN = "f" * 32


def test_the_time_to_an_ack_starts_in_the_run_of_the_update_though_an_earlier_one_had_the_same_task_id() -> None:
    recorded: list[Observation] = []
    now_s = 0.0
    stats = ClientStats(recorded.extend, lambda: now_s)
    for run_id, sent_s in ((RUN, 1.0), (OTHER_RUN, 50.0), (OTHER_RUN, 53.0)):
        now_s = sent_s
        stats.received(CLIENT, welcome(run_id=run_id), 0)
        stats.sent(CLIENT, update(), 8)
    now_s = 60.0
    stats.received(CLIENT, Ack(task_id=1, outcome="accepted", first_outcome="accepted"), 0)
    times_s = [each.value for each in recorded if each.metric is catalogue.CLIENT_ACKNOWLEDGE]
    assert times_s == [10.0]
