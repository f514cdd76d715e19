"""The cause of a refusal: a client, or a model that most clients cannot train."""

import pytest

from support.played import PlayedServer
from unstale.coordinator.actions import Acknowledge, Outcome
from unstale.learner.bounds import NormBounds
from unstale.learner.row_checks import Norms
from unstale.server.client_limits import REASONS, ClientLimits, ModelHealth
from unstale_proto.errors import Reason
from unstale_proto.messages import Task

AFTER = 3


def verdict(client_id: int, reason: Reason | None) -> Acknowledge:
    outcome = Outcome.ACCEPTED if reason is None else Outcome.REJECTED
    return Acknowledge(client_id=client_id, task_id=1, outcome=outcome, first_outcome=outcome, reason=reason)


def judged(client_limits: ClientLimits, reasons: dict[int, Reason | None], times: int = 1) -> list[int]:
    """Clients that are to go after so many turns of these verdicts."""
    for _ in range(times):
        for client_id, reason in reasons.items():
            client_limits.on_verdict(verdict(client_id, reason), 0.0)
    return [client_id for client_id in reasons if client_limits.is_quarantine_due(client_id)]


@pytest.mark.parametrize("reason", sorted(REASONS))
def test_a_reason_that_most_clients_are_refused_for_quarantines_no_client(reason: Reason) -> None:
    client_limits = ClientLimits(quarantine_after=AFTER)
    assert judged(client_limits, {0: reason, 1: reason, 2: reason, 3: None, 4: None}, times=10) == []


@pytest.mark.parametrize("reason", sorted(REASONS))
def test_a_minority_is_quarantined(reason: Reason) -> None:
    client_limits = ClientLimits(quarantine_after=AFTER)
    all_clients = dict.fromkeys(range(5))
    judged(client_limits, all_clients)
    assert judged(client_limits, {**all_clients, 0: reason, 1: reason}, times=AFTER - 1) == []
    assert judged(client_limits, {**all_clients, 0: reason, 1: reason}) == [0, 1]


def test_half_of_the_clients_are_no_majority_and_one_client_is_none() -> None:
    assert judged(ClientLimits(quarantine_after=AFTER), {0: None, 1: Reason.ZERO_UPDATE}, times=AFTER) == [1]
    assert judged(ClientLimits(quarantine_after=AFTER), {0: Reason.ZERO_UPDATE}, times=AFTER) == [0]


def test_other_reasons_are_a_clients_own_fault_however_many_are_refused() -> None:
    client_limits = ClientLimits(quarantine_after=AFTER)
    all_clients = dict.fromkeys(range(4), Reason.MALFORMED_PAYLOAD)
    assert judged(client_limits, all_clients, times=AFTER) == [0, 1, 2, 3]


def test_rejections_counted_before_most_clients_were_refused_are_cleared() -> None:
    client_limits = ClientLimits(quarantine_after=AFTER)
    all_clients = dict.fromkeys(range(3))
    judged(client_limits, all_clients)
    judged(client_limits, {0: Reason.NON_FINITE}, times=AFTER - 1)  # the fastest
    assert judged(client_limits, {1: Reason.NON_FINITE, 0: Reason.NON_FINITE}) == []
    judged(client_limits, all_clients)
    assert judged(client_limits, {0: Reason.NON_FINITE}, times=AFTER - 1) == []


def test_the_warning_has_the_figures_and_comes_once() -> None:
    model_health, bounds = ModelHealth(), NormBounds(2.0, clients=3)
    for client_id, norm in enumerate((4.0, 5.0, 6.0)):
        bounds.judged(client_id, 0, Norms(norm), accepted=False)
        model_health.on_refused(client_id, Reason.NORM_TOO_LARGE)
    assert model_health.take_warning(bounds) == (
        "the last updates of 3 of 3 clients were refused (3 norm-too-large); no client is kept out for that: the "
        "median of their norms is 5 and the bound server.norm_max is 2; restart the server with a larger bound or with "
        "adaptive"
    )
    assert model_health.take_warning(bounds) is None
    for client_id in range(3):
        model_health.on_accepted(client_id)
    assert model_health.take_warning(bounds) is None
    for client_id in range(2):
        model_health.on_refused(client_id, Reason.ZERO_UPDATE)
    assert model_health.take_warning(bounds) == (
        "the last updates of 2 of 3 clients were refused (2 zero-update); no client is kept out for that"
    )


def test_a_server_warns_of_too_low_a_bound_and_quarantines_no_client(caplog: pytest.LogCaptureFixture) -> None:
    server = PlayedServer(clients=3, norm_max=1.0, client_limits=ClientLimits(quarantine_after=AFTER))
    clients = [server.client(client_id) for client_id in range(3)]
    for client in clients:
        client.join()
    for _ in range(AFTER + 1):
        for client in clients:
            *_, task = client.hears()
            assert isinstance(task, Task)
            assert client.answer(task).reason is Reason.NORM_TOO_LARGE
        server.pass_time(5.0)  # after which those that were refused get other tasks
    assert server.coordinator.clients_by_state["left"] == 0
    warnings = [one for one in caplog.messages if "server.norm_max is 1;" in one]
    assert len(warnings) == 1
