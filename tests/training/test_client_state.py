"""The state of clients follows verdicts, also when these overtake each other."""

import torch

from unstale.training.client_state import ClientState


def put(state: ClientState, number: int, value: float) -> None:
    state.put(0, number, {"x": torch.tensor([value])})


def test_an_older_state_does_not_replace_a_newer_one() -> None:
    state = ClientState()
    put(state, 0, 1.0)
    put(state, 1, 2.0)
    assert state.keep(0, 1)
    assert not state.keep(0, 0)
    assert state.kept(0)["x"].tolist() == [2.0]


def test_added_states_count_in_any_order() -> None:
    state = ClientState(adds=True)
    put(state, 0, 1.0)
    put(state, 1, 2.0)
    assert state.keep(0, 1)
    assert state.keep(0, 0)
    assert state.kept(0)["x"].tolist() == [3.0]
