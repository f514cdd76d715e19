"""A run with the defaults keeps its accuracy when one of its 20 clients attacks."""

import pytest

from unstale.config import Settings
from unstale.simulator.assemble import simulation

LOSS_MAX = 0.02
"""Tolerated loss of accuracy: seven of the 355 test examples."""


def accuracy(**attack: object) -> float:
    settings = Settings(device="cpu", attack=attack, simulation={"backend": "loop"})  # type: ignore[arg-type]
    return simulation(settings, on_progress=lambda _: None).run().test_accuracy


@pytest.fixture(scope="module")
def honest() -> float:
    return accuracy()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "factor"), [("scale", 1e3), ("scale", 1e16), ("sign-flip", None), ("noise", None), ("label-flip", None)]
)
def test_one_attacker_among_twenty_clients_costs_little_accuracy(
    name: str, factor: float | None, honest: float
) -> None:
    assert accuracy(name=name, factor=factor) >= honest - LOSS_MAX
