"""How long simulated tasks take. Source: algorithms.md 4.2."""

from collections.abc import Callable

import pytest

from unstale.errors import UserError
from unstale.simulator import latency
from unstale.simulator.latency import Latency

MAKERS = latency.LATENCIES.items()


@pytest.mark.parametrize(("name", "make"), MAKERS)
def test_a_draw_depends_on_seed_client_and_number_alone(
    name: str, make: Callable[[int, float], Latency]
) -> None:
    one, other_seed = make(1, 2.0), make(2, 2.0)
    draws = {(client, number): one(client, number) for client in range(5) for number in range(5)}
    again = make(1, 2.0)
    assert {key: again(*key) for key in reversed(draws)} == draws
    assert len(set(draws.values())) == len(draws)
    assert all(other_seed(*key) != drawn for key, drawn in draws.items())


def test_exponential_draws_have_the_mean_and_the_spread_of_their_distribution() -> None:
    # Exp(m): mean m, standard deviation m; P(X > m) = 1/e. Of 4,000 draws the mean is off by m/63 one time in three.
    draw = latency.exponential(0, 3.0)
    drawn = [draw(client, number) for client in range(40) for number in range(100)]
    assert min(drawn) > 0
    assert sum(drawn) / len(drawn) == pytest.approx(3.0, rel=0.05)
    assert sum(value > 3.0 for value in drawn) / len(drawn) == pytest.approx(0.3679, abs=0.03)


def test_fixed_draws_are_the_mean_and_less_than_a_thousandth_more() -> None:
    draw = latency.fixed(0, 3.0)
    assert all(3.0 <= draw(client, number) < 3.003 for client in range(10) for number in range(10))


def test_an_unknown_latency_is_told_with_the_nearest_spelling() -> None:
    with pytest.raises(UserError, match=r"^unknown latency 'exponentail'; did you mean 'exponential'\?$"):
        latency.create("exponentail", seed=0, mean_s=1.0)
