"""Values created for every update: their guarantees, although they are not frozen at run time."""

import pytest

from unstale.coordinator.actions import Acknowledge, Contribution, Outcome, SendTask
from unstale.coordinator.events import UpdateArrived

MADE = (
    (SendTask, {"client_id": 1, "task_id": 2, "version": 3, "number": 4}),
    (Acknowledge, {"client_id": 1, "task_id": 2, "outcome": Outcome.ACCEPTED, "first_outcome": Outcome.ACCEPTED}),
    (Contribution, {"client_id": 1, "task_id": 2, "handle": 3, "base_version": 4, "staleness": 5}),
    (UpdateArrived, {"client_id": 1, "task_id": 2, "base_version": 3, "handle": 4, "at_s": 5.0}),
)


@pytest.mark.parametrize(("kind", "fields"), MADE)
def test_values_are_equal_and_hashed_by_their_fields(kind, fields):
    assert kind(**fields) == kind(**fields)
    assert kind(**fields) != kind(**fields | {"client_id": 0})
    assert len({kind(**fields), kind(**fields)}) == 1


@pytest.mark.parametrize(("kind", "fields"), MADE)
def test_values_take_their_fields_by_name_and_no_others(kind, fields):
    with pytest.raises(TypeError):
        kind(*fields.values())
    with pytest.raises(AttributeError):
        kind(**fields).another = 1


@pytest.mark.parametrize(("kind", "fields"), MADE)
def test_values_have_a_repr_of_their_fields(kind, fields):
    assert repr(kind(**fields)).startswith(f"{kind.__name__}(client_id=1, task_id=2, ")
