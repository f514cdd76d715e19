"""Problems with a known optimum against hand-computed values, finite differences and an independent solver."""

from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from unstale.errors import UserError
from unstale_papers.theory.problems import GRADIENT_MAX, LogisticRegression, Problem, Quadratics, draw

QUADRATIC: dict[str, Any] = {"objective": "quadratic", "dimension": 4, "heterogeneity": 1.0, "curvature": [0.5, 2.0]}
LOGISTIC: dict[str, Any] = {"objective": "logistic", "dimension": 3, "heterogeneity": 1.0}
both = pytest.mark.parametrize("options", [QUADRATIC, LOGISTIC], ids=["quadratic", "logistic"])


def two_clients() -> Quadratics:
    """f_1(x) = x^2 / 2 and f_2(x) = 3 (x - 1)^2 / 2."""
    return Quadratics(np.array([[[1.0]], [[3.0]]]), np.array([[0.0], [1.0]]))


def objective(problem: Problem, x_d: np.ndarray[Any, Any]) -> float:
    """f(x)."""
    return float(np.mean([problem.loss(client_id, x_d) for client_id in range(problem.clients)]))


def test_two_quadratics_have_the_optimum_computed_by_hand() -> None:
    """x + 3 (x - 1) = 0 at 3/4; with weights 3 and 1, 3 x + 3 (x - 1) = 0 at 1/2."""
    assert two_clients().optimum_d.tolist() == pytest.approx([0.75])
    assert two_clients().minimum(np.array([3.0, 1.0])).tolist() == pytest.approx([0.5])
    assert two_clients().loss(1, np.array([3.0])) == 6
    assert two_clients().gradient(1, np.array([3.0])).tolist() == [6]


def test_a_logistic_loss_has_the_value_computed_by_hand() -> None:
    """One example with margin 0: log 2, and half of -y u; l2 adds 0.1 x."""
    problem = LogisticRegression(np.array([[[2.0, 0.0]]]), np.array([[1.0]]))
    assert problem.loss(0, np.zeros(2)) == pytest.approx(np.log(2))
    assert problem.gradient(0, np.array([0.0, 4.0])).tolist() == pytest.approx([-1.0, 0.4])


@both
def test_gradients_are_those_of_finite_differences(options: dict[str, Any]) -> None:
    problem = draw(options, 3, seed=1)
    x_d = np.linspace(-1, 1, problem.dimension)
    for client_id in range(3):
        differences = [
            (problem.loss(client_id, x_d + step_d) - problem.loss(client_id, x_d - step_d)) / 2e-6
            for step_d in 1e-6 * np.eye(problem.dimension)
        ]
        assert problem.gradient(client_id, x_d).tolist() == pytest.approx(differences, abs=1e-8)
    assert problem.mean_gradient(x_d).tolist() == pytest.approx(
        np.mean([problem.gradient(client_id, x_d) for client_id in range(3)], axis=0)
    )


@both
def test_the_optimum_is_that_of_an_independent_solver(options: dict[str, Any]) -> None:
    problem = draw(options, 5, seed=2)
    assert np.linalg.norm(problem.mean_gradient(problem.optimum_d)) < max(GRADIENT_MAX, 1e-13)
    found = minimize(lambda x_d: objective(problem, x_d), np.zeros(problem.dimension), method="BFGS", tol=1e-9)
    assert problem.optimum_d.tolist() == pytest.approx(found.x.tolist(), abs=1e-5)


@both
def test_problems_are_drawn_by_seed(options: dict[str, Any]) -> None:
    x_d = np.ones(options["dimension"])
    first, again, other = (draw(options, 3, seed=seed).loss(0, x_d) for seed in (1, 1, 2))
    assert first == again != other


def test_equal_clients_have_one_function() -> None:
    problem = draw({**QUADRATIC, "heterogeneity": 0.0}, 3, seed=0)
    x_d = np.ones(4)
    assert problem.loss(0, x_d) == problem.loss(1, x_d) == problem.loss(2, x_d)


def test_quadratics_have_the_eigenvalues_of_the_options() -> None:
    problem = draw(QUADRATIC, 3, seed=0)
    assert isinstance(problem, Quadratics)
    for curvature_dd in problem.curvature_Ndd:
        assert np.linalg.eigvalsh(curvature_dd).tolist() == pytest.approx([0.5, 1.0, 1.5, 2.0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": "quadratc"}, "unknown objective 'quadratc'; did you mean 'quadratic'"),
        ({"dimension": 0}, "dimension is 0, expected at least 1 parameter"),
    ],
)
def test_an_invalid_option_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        draw({**QUADRATIC, **changes}, 3, seed=0)
