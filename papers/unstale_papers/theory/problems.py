"""Federated objectives with a known optimum: quadratics and logistic regression, in float64.

    f(x) = 1/N sum_i f_i(x)

Source: ours, docs/methods/experiments.md#theory-experiments

Legend: N clients, n examples of each client, d parameters.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from unstale.errors import UserError, unknown_name
from unstale.seeds import Generator, Stream, stream

Floats = NDArray[np.float64]

EXAMPLES = 40  # of each client of a logistic regression
L2 = 0.1  # weight of |x|^2 / 2 in a logistic regression
NEWTON_MAX = 50  # Newton steps; fewer than ten are usual
GRADIENT_MAX = 1e-12  # length of the gradient at an optimum


class Problem(ABC):
    """The functions f_i of N clients."""

    @property
    @abstractmethod
    def clients(self) -> int:
        """N"""

    @property
    @abstractmethod
    def dimension(self) -> int:
        """d"""

    @abstractmethod
    def loss(self, client_id: int, x_d: Floats) -> float:
        """f_i(x)."""

    @abstractmethod
    def gradient(self, client_id: int, x_d: Floats) -> Floats:
        """The gradient of f_i at x, [d]."""

    @abstractmethod
    def minimum(self, weights_N: Floats) -> Floats:
        """The minimum of sum_i weights_i f_i, [d]. weights_N: at least 0, and not all 0."""

    @cached_property
    def optimum_d(self) -> Floats:
        """The minimum of f."""
        return self.minimum(np.ones(self.clients))

    def mean_gradient(self, x_d: Floats) -> Floats:
        """The gradient of f at x, [d]."""
        gradients_Nd = np.stack([self.gradient(client_id, x_d) for client_id in range(self.clients)])
        return np.asarray(gradients_Nd.mean(axis=0))


@dataclass(frozen=True, eq=False)
class Quadratics(Problem):
    """f_i(x) = (x - b_i)^T A_i (x - b_i) / 2. curvature_Ndd: A_i, positive definite. centre_Nd: b_i."""

    curvature_Ndd: Floats
    centre_Nd: Floats

    @property
    @override
    def clients(self) -> int:
        return len(self.centre_Nd)

    @property
    @override
    def dimension(self) -> int:
        return int(self.centre_Nd.shape[1])

    @override
    def loss(self, client_id: int, x_d: Floats) -> float:
        return float((x_d - self.centre_Nd[client_id]) @ self.gradient(client_id, x_d)) / 2

    @override
    def gradient(self, client_id: int, x_d: Floats) -> Floats:
        return np.asarray(self.curvature_Ndd[client_id] @ (x_d - self.centre_Nd[client_id]))

    @override
    def minimum(self, weights_N: Floats) -> Floats:
        weighted_dd = np.einsum("n,nde->de", weights_N, self.curvature_Ndd)
        pulled_d = np.einsum("n,nde,ne->d", weights_N, self.curvature_Ndd, self.centre_Nd)
        return np.linalg.solve(weighted_dd, pulled_d)

    @override
    def mean_gradient(self, x_d: Floats) -> Floats:
        mean_dd, pulled_d = self._mean
        return np.asarray(mean_dd @ x_d - pulled_d)

    @cached_property
    def _mean(self) -> tuple[Floats, Floats]:
        """The mean of A_i and of A_i b_i."""
        pulled_d = np.einsum("nde,ne->d", self.curvature_Ndd, self.centre_Nd) / self.clients
        return self.curvature_Ndd.mean(axis=0), pulled_d


@dataclass(frozen=True, eq=False)
class LogisticRegression(Problem):
    """f_i(x) = 1/n sum_j log(1 + exp(-y_ij u_ij^T x)) + L2 |x|^2 / 2. inputs_Nnd: u. signs_Nn: y, 1 or -1."""

    inputs_Nnd: Floats
    signs_Nn: Floats

    @property
    @override
    def clients(self) -> int:
        return len(self.inputs_Nnd)

    @property
    @override
    def dimension(self) -> int:
        return int(self.inputs_Nnd.shape[2])

    @override
    def loss(self, client_id: int, x_d: Floats) -> float:
        margins_n = self.signs_Nn[client_id] * (self.inputs_Nnd[client_id] @ x_d)
        return float(np.logaddexp(0, -margins_n).mean() + L2 * x_d @ x_d / 2)

    @override
    def gradient(self, client_id: int, x_d: Floats) -> Floats:
        inputs_nd, signs_n = self.inputs_Nnd[client_id], self.signs_Nn[client_id]
        wrong_n = _sigmoid(-signs_n * (inputs_nd @ x_d))
        return np.asarray(L2 * x_d - (signs_n * wrong_n) @ inputs_nd / len(signs_n))

    @override
    def minimum(self, weights_N: Floats) -> Floats:
        x_d = np.zeros(self.dimension)
        for _ in range(NEWTON_MAX):
            gradient_d = sum(
                (weight * self.gradient(client_id, x_d) for client_id, weight in enumerate(weights_N.tolist())),
                start=np.zeros(self.dimension),
            )
            if np.linalg.norm(gradient_d) <= GRADIENT_MAX * weights_N.sum():
                break
            x_d = x_d - np.linalg.solve(self._curvature(weights_N, x_d), gradient_d)
        return x_d

    def _curvature(self, weights_N: Floats, x_d: Floats) -> Floats:
        """The second derivative of the weighted sum, [d, d]."""
        right_Nn = _sigmoid(self.inputs_Nnd @ x_d)
        slopes_Nn = weights_N[:, None] * right_Nn * (1 - right_Nn) / self.signs_Nn.shape[1]
        curved_dd = np.einsum("nj,njd,nje->de", slopes_Nn, self.inputs_Nnd, self.inputs_Nnd)
        return np.asarray(curved_dd + L2 * weights_N.sum() * np.eye(self.dimension))


def _sigmoid(values: Floats) -> Floats:
    return np.asarray(np.exp(-np.logaddexp(0, -values)))


def draw(options: Mapping[str, Any], clients: int, seed: int) -> Problem:
    """Draw a problem.

    Args:
        options: `objective`, `quadratic` or `logistic`; `dimension`; `heterogeneity`, the standard deviation of the
            clients' centres; for quadratics `curvature`, the least and the greatest eigenvalue of each A_i.
        clients: N.
        seed: of the run.

    Raises:
        UserError: `objective` is unknown, or `dimension` is below 1.
    """
    kinds = {"quadratic": _quadratics, "logistic": _logistic}
    if options["objective"] not in kinds:
        raise unknown_name("objective", options["objective"], kinds)
    if options["dimension"] < 1:
        raise UserError(f"dimension is {options['dimension']}, expected at least 1 parameter")
    rng = stream(seed, Stream.PARTITION)
    centre_d = rng.standard_normal(options["dimension"])
    centre_Nd = centre_d + options["heterogeneity"] * rng.standard_normal((clients, options["dimension"]))
    return kinds[options["objective"]](options, rng, centre_Nd)


def _quadratics(options: Mapping[str, Any], rng: Generator, centre_Nd: Floats) -> Problem:
    """Each A_i has its own axes if clients differ; the extreme eigenvalues are those of the options."""
    clients, dimension = centre_Nd.shape
    least, greatest = options["curvature"]
    eigenvalues_d = np.linspace(least, greatest, dimension)
    axes_Ndd = np.linalg.qr(rng.standard_normal((clients, dimension, dimension)))[0]
    if options["heterogeneity"] == 0:
        axes_Ndd[:] = axes_Ndd[0]
    return Quadratics(np.einsum("nde,e,nfe->ndf", axes_Ndd, eigenvalues_d, axes_Ndd), centre_Nd)


def _logistic(_: Mapping[str, Any], rng: Generator, centre_Nd: Floats) -> Problem:
    """Each client labels its examples by its own centre."""
    clients, dimension = centre_Nd.shape
    inputs_Nnd = rng.standard_normal((clients, EXAMPLES, dimension))
    likely_Nn = _sigmoid(np.einsum("njd,nd->nj", inputs_Nnd, centre_Nd))
    return LogisticRegression(inputs_Nnd, np.where(rng.random(likely_Nn.shape) < likely_Nn, 1.0, -1.0))
