"""The oracles against every number of the golden vectors, and against properties of single policies."""

import numpy as np
import pytest

from oracles.averages import (
    Direct,
    DynSgd,
    FedAsync,
    FedAvg,
    FedAvgIs,
    FedBuff,
    Refl,
    Sasgd,
    Scaffold,
    Twafl,
    Weighted,
    first_order,
    scaffold_client,
)
from oracles.memories import FedAr, FedVarp, Gsgm, Mifa
from oracles.oracle import Update, cos, mean, normalise
from oracles.robust import CoordinateMedian, GeometricMedian, Krum, MultiKrum, ServerOptimiser, TrimmedMean, clip_rows
from oracles.similar import FedHist, Record, Wkafl
from unstale.seeds import Stream, stream


def vector(*values):
    return np.array(values, dtype=np.float64)


W, ETA, RUN = vector(0.1, -0.2, 0.3, 0.0), 0.1, {"clients": 5, "dimension": 4}
A = Update(client=2, s=0, n=10, g=vector(1, 0, 0, 0))
B = Update(client=0, s=1, n=30, g=vector(0.6, 0.8, 0, 0))
C = Update(client=4, s=3, n=20, g=vector(0, -0.5, 1.5, 0.5))
OLD = {0: vector(0.1, 0.1, 0, 0), 1: vector(0.2, 0.2, 0.2, 0.2)}


def step(oracle):
    return oracle.step(W, [A, B, C], ETA)


def matches_print(actual, *printed):
    """Within 1e-8 of the numbers printed in appendix B."""
    np.testing.assert_allclose(actual, printed, atol=1e-8, rtol=0)


@pytest.mark.parametrize(
    ("oracle", "printed"),
    [
        (FedAvg(**RUN), (0.04666667, -0.21000000, 0.25000000, -0.01666667)),
        (FedAvg(weighting="samples", **RUN), (0.05333333, -0.22333333, 0.25000000, -0.01666667)),
        (DynSgd(**RUN), (0.02571429, -0.21571429, 0.27857143, -0.00714286)),
        (DynSgd(normalise=False, **RUN), (0.05666667, -0.20916667, 0.28750000, -0.00416667)),
        (Sasgd(**RUN), (0.05666667, -0.20916667, 0.28750000, -0.00416667)),
        (Twafl(weighting="equal", **RUN), (0.03245464, -0.21824971, 0.27200425, -0.00933192)),
        (Twafl(normalise=False, **RUN), (0.06126057, -0.22279208, 0.28008517, -0.00663828)),
        (Refl(**RUN), (0.03044164, -0.20686497, 0.26758901, -0.01080366)),
        (FedBuff(**RUN), (0.05252453, -0.21052285, 0.27500000, -0.00833333)),
        (FedAsync(**RUN), (0.05800000, -0.20875879, 0.25500000, -0.01500000)),
        (FedAvgIs(probabilities=[0.5, 1, 0.8, 0.3, 0.25], **RUN), (0.05100000, -0.19200000, 0.18000000, -0.04000000)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_next_model_matches_the_print(oracle, printed):
    matches_print(step(oracle), *printed)


def test_the_weights_match_the_print():
    matches_print(normalise([1 / (u.s + 1) for u in (A, B, C)]), 0.57142857, 0.28571429, 0.14285714)
    matches_print(normalise([(np.e / 2) ** -u.s for u in (A, B, C)]), 0.46859139, 0.34477028, 0.18663833)
    matches_print(Refl(**RUN).shares([A, B, C]), 0.56306883, 0.22085790, 0.21607327)


def test_gsgm():
    oracle = Gsgm(alpha=0.9, **RUN)
    oracle.M = vector(0.5, 0, 0, 0)
    matches_print(step(oracle), 0.00166667, -0.21000000, 0.25000000, -0.01666667)


def test_mifa():
    oracle = Mifa(init="zeros", **RUN)
    for client, g in OLD.items():
        oracle.G[client] = g
    matches_print(step(oracle), 0.06400000, -0.21000000, 0.26600000, -0.01400000)


def test_fedvarp():
    oracle = FedVarp(**RUN)
    for client, g in OLD.items():
        oracle.y[client] = g
    matches_print(step(oracle), 0.04400000, -0.21266667, 0.24600000, -0.02066667)


def test_fedar():
    oracle = FedAr(cutoff="nonconvex", c=2.0, **RUN)
    for client, g in OLD.items():
        oracle.G[client] = g
    oracle.tau, oracle.seen, oracle.version = [3, 8, 0, 49, 0], {0, 1}, 99
    assert oracle.g(100) == 20
    matches_print(step(oracle), 0.05370537, -0.21379463, 0.25620537, -0.01879463)
    assert oracle.tau == [0, 9, 0, 50, 0]
    matches_print([oracle.psi(i, 100) for i in range(5)], 1, 1.25892541, 1, 0, 1)


def test_scaffold():
    oracle = Scaffold(**RUN)
    oracle.c = vector(0.1, 0, 0, 0)
    changes = (vector(0.2, 0, 0, 0), vector(0, 0.3, 0, 0), vector(0, 0, 0.1, 0))
    updates = [Update(client=i, s=0, g=vector(1, 0, 0, 0), extra=dc) for i, dc in enumerate(changes)]
    oracle.step(W, updates, ETA)
    matches_print(oracle.c, 0.14, 0.06, 0.02, 0)


def test_first_order_and_weighted():
    u = vector(0.1, -0.2, 0, -0.05)
    compensated = first_order(u, W, np.zeros(4), 4.0)
    (one,) = [Update(client=0, s=40, g=g) for g in (compensated,)]
    matches_print(Direct(**RUN).step(W, [one], 1.0), -0.00400000, 0.03200000, 0.30000000, 0.05000000)
    late = Update(client=0, s=40, g=u)
    matches_print(Weighted(**RUN).step(W, [late], 1.0), 0.07500000, -0.15000000, 0.30000000, 0.01250000)


def wkafl(**settings):
    oracle = Wkafl(alpha=0.1, clip_bound=1.2, beta=10, similarity_min=0.3, gamma=0.1, **settings, **RUN)
    oracle.previous = vector(0.5, 0.5, 0, 0)
    return oracle


def test_wkafl():
    oracle = wkafl()
    matches_print(step(oracle), 0.00454578, -0.22409157, 0.3, 0)
    matches_print(oracle.e, 0.72293041, 0.25520540, 0.20426300, 0.06808767)
    matches_print(oracle.sim, 0.92206111, 0.80604863, 0.19985068)
    matches_print(oracle.p, 0.76135538, 0.23864462, 0)


@pytest.mark.parametrize(
    ("settings", "printed"),
    [
        ({"stage_two_round": 0, "stage_two_bound": 1}, (0.02789700, -0.21797945, 0.3, 0)),
        ({"no_gradient_selection": True}, (0.02770696, -0.22552054, 0.27957370, -0.00680877)),
        ({"no_staleness": True}, (0.00655151, -0.22267750, 0.29753142, -0.00082286)),
        ({"no_non_iidness": True}, (0.00789750, -0.21579501, 0.3, 0)),
    ],
)
def test_wkafl_in_stage_two_and_without_its_parts(settings, printed):
    matches_print(step(wkafl(**settings)), *printed)


def test_fedhist():
    oracle = FedHist(h=5, alpha=0.1, utility_weight=0.1, **RUN)
    oracle.GH = [vector(0, 1, 0, 0), vector(1, 1, 0, 0)]
    oracle.U = {0: 0.4, 1: 0.0, 2: 0.0, 3: 0.0, 4: -0.2}
    for u in (A, B, C):
        assert oracle.opposite(u.g).tolist() == [0, 1, 0, 0]
    oracle.version = 4  # no round has utilities yet
    matches_print(step(oracle), -0.00454471, -0.24699781, 0.26051966, -0.01316011)
    matches_print(oracle.phat, 0.73575888, 0.58134113, 0.27305022)
    matches_print(oracle.p, 0.46269772, 0.36558881, 0.17171347)
    matches_print(oracle.Gagg, 0.68205100, 0.30661431, 0.25757021, 0.08585674)
    matches_print(np.mean([np.linalg.norm(u.g) for u in (A, B, C)]), 1.21943747)


def test_fedhist_utilities():
    oracle = FedHist(h=5, gamma=0.2, similarity_min=0.3, **RUN)
    oracle.U = {0: 0.4, 1: 0.0, 2: 0.0, 3: 0.0, 4: -0.2}
    oracle.LH = {
        7: [
            Record(1, 1, 7, vector(1, 1, 0, 0)),
            Record(3, 4, 4, vector(0, 1, 1, 0)),
            Record(4, 2, 6, vector(1, 0, 0, 1)),
        ],
        9: [Record(2, 3, 7, vector(0, 1, 0, 0)), Record(0, 1, 9, vector(5, 5, 5, 5))],
    }
    before = dict(oracle.U)
    oracle.judge(7)
    matches_print([oracle.U[i] for i in (1, 3, 4)], 0.06856352, 0.09401175, -0.15702280)
    utilities = [(oracle.U[i] - 0.8 * before[i]) / 0.2 for i in (1, 3, 4)]
    matches_print(utilities, 0.34281760, 0.47005873, 0.01488602)
    assert (oracle.U[0], oracle.U[2]) == (0.4, 0.0)


def random_updates(rows, clients=9, staleness=None):
    rng = stream(0, Stream.BATCHES, rows)
    late = rng.integers(0, 6, rows).tolist() if staleness is None else [staleness] * rows
    who = rng.permutation(clients)[:rows].tolist()
    return [Update(client=i, s=s, g=rng.standard_normal(4)) for i, s in zip(who, late, strict=True)]


def same(a, b):
    np.testing.assert_allclose(a, b, atol=1e-12, rtol=1e-12)


BIG = {"clients": 9, "dimension": 4, "round_size": 9}


@pytest.mark.parametrize("oracle", [FedAvg, DynSgd, Sasgd, Twafl, Refl, FedBuff, Wkafl, FedHist])
def test_equal_fresh_updates_are_one_step_against_their_gradient(oracle):
    """(a)"""
    g = vector(0.3, -0.4, 0.5, 0.6)
    updates = [Update(client=i, s=0, n=7, g=g) for i in range(4)]
    same(oracle(**BIG).step(W, updates, ETA), W - ETA * g)


def test_fedavg_by_samples_over_all_clients_is_one_step_on_the_pooled_data():
    """(b), for a least-squares model."""
    rng = stream(0, Stream.PARTITION)
    x, y = rng.standard_normal((12, 4)), rng.standard_normal(12)
    shares = [slice(0, 2), slice(2, 7), slice(7, 12)]

    def gradient(rows):
        return x[rows].T @ (x[rows] @ W - y[rows]) / len(y[rows])

    updates = [Update(client=i, s=0, n=len(y[rows]), g=gradient(rows)) for i, rows in enumerate(shares)]
    same(FedAvg(weighting="samples", **BIG).step(W, updates, ETA), W - ETA * gradient(slice(0, 12)))


@pytest.mark.parametrize("oracle", [Wkafl, FedHist, Refl, MultiKrum, GeometricMedian])
def test_the_order_of_arrival_does_not_matter(oracle):
    """(e)"""
    updates = random_updates(6)
    same(oracle(**BIG).step(W, updates[::-1], ETA), oracle(**BIG).step(W, updates, ETA))


def test_refl_with_one_distinct_staleness_is_fedavg():
    """(f)"""
    updates = random_updates(6, staleness=4)
    same(Refl(**BIG).step(W, updates, ETA), FedAvg(**BIG).step(W, updates, ETA))


@pytest.mark.parametrize("oracle", [FedAr, FedVarp, Mifa])
def test_a_memory_with_full_participation_is_fedavg(oracle):
    """(g) and (h), and MIFA's forced first round."""
    remembering = oracle(**BIG)
    for _ in range(3):
        updates = random_updates(9, staleness=0)
        same(remembering.step(W, updates, ETA), FedAvg(**BIG).step(W, updates, ETA))
        assert remembering.counts


def test_fedar_without_rho_and_cutoff_is_mifa_over_seen_clients():
    """2.16: with every client seen it is MIFA."""
    fedar, mifa = FedAr(rho=0.0, cutoff="none", **BIG), Mifa(init="zeros", **BIG)
    for rows in (9, 2, 0, 5):
        updates = random_updates(rows, staleness=0)
        same(fedar.step(W, updates, ETA), mifa.step(W, updates, ETA))


def test_the_direct_policy_in_model_form_is_the_mean_of_the_models():
    w_b = vector(1, 2, 3, 4)
    updates = [Update(client=0, s=0, g=A.g), Update(client=1, s=2, g=B.g, w_b=w_b)]
    ends = [W - ETA * A.g, w_b - ETA * B.g]
    same(Direct(stale_form="model", **RUN).step(W, updates, ETA), mean(ends))


def test_gsgm_with_one_sender_a_round_averages_a_cycle():
    """2.10: after N single updates M is the mean of the N q."""
    oracle = Gsgm(alpha=0.5, clients=3, dimension=4)
    for i, u in enumerate((A, B, C)):
        oracle.step(W, [Update(client=i, s=0, g=u.g)], ETA)
    same(oracle.M, mean([A.g, B.g, C.g]))
    assert not oracle.Q
    assert oracle.A.tolist() == [0.0] * 4


def test_mifa_waits_then_fills_then_steps():
    oracle = Mifa(init="wait", clients=2, dimension=4)
    first, second = Update(client=0, s=0, g=A.g), Update(client=1, s=0, g=B.g)
    for arrivals in ([first], [second], [first], [], [second]):
        same(oracle.step(W, arrivals, ETA), W)
        assert not oracle.counts
    same(oracle.step(W, [], ETA), W - ETA * (A.g + B.g) / 2)
    assert oracle.counts


def test_scaffold_clients_cancel_their_drift():
    """2.6 on F_i(y) = |y - a_i|^2 / 2: with c_i and c at the gradients of w, a client follows the mean gradient."""
    a = [vector(1, 0, 0, 0), vector(0, 3, 0, 0)]
    w = np.zeros(4)
    gradients = [w - a_i for a_i in a]
    c = mean(gradients)
    for a_i, c_i in zip(a, gradients, strict=True):
        u, dc, c_next = scaffold_client(w, c, c_i, lambda y, a_i=a_i: y - a_i, 1, 0.1)
        same(u, 0.1 * c)
        same(dc, np.zeros(4))
        same(c_next, c_i)


def test_a_scaffold_client_with_zero_controls_sends_its_mean_gradient():
    u, dc, c_next = scaffold_client(W, np.zeros(4), np.zeros(4), lambda y: y, 2, 0.5)
    same(u, 0.75 * W)
    same(dc, 0.75 * W)
    same(c_next, 0.75 * W)


def rows_of(*rows):
    return [Update(client=i, s=0, g=vector(*row)) for i, row in enumerate(rows)]


def test_the_robust_averages_by_hand():
    run = {"clients": 5, "dimension": 2}
    w = np.zeros(2)
    rows = rows_of((1, 0), (2, 8), (3, 1), (100, 2), (4, -50))
    same(CoordinateMedian(**run).step(w, rows, -1.0), [3, 1])
    same(CoordinateMedian(**run).step(w, rows[:4], -1.0), [2.5, 1.5])
    same(TrimmedMean(trim=0.2, **run).step(w, rows, -1.0), [3, 1])
    same(TrimmedMean(trim=0.1, **run).step(w, rows, -1.0), [22, -7.8])
    close = rows_of((0, 0), (1, 0), (0, 2), (3, 3), (90, 90))  # two neighbours: 5, 6, 9, 23, much
    same(Krum(byzantine=1, **run).step(w, close, -1.0), [0, 0])
    same(MultiKrum(byzantine=1, **run).step(w, close, -1.0), [1, 1.25])
    same(Krum(byzantine=1, **run).step(w, close[1:3], -1.0), [1, 0])  # a tie: the lowest client
    triangle = rows_of((1, 0), (-0.5, 3**0.5 / 2), (-0.5, -(3**0.5) / 2))
    same(GeometricMedian(**run).step(w, triangle, -1.0), [0, 0])
    heap = GeometricMedian(**run).step(w, rows_of((0, 0), (0, 0), (0, 0), (9, 9)), -1.0)
    matches_print(heap, 0, 0)  # on the heap, but for the smoothing of 1e-8


def test_clipping_by_hand():
    clipped = clip_rows(rows_of((3, 4), (0.3, 0.4), (0, 0)), 1.0)
    same([u.g for u in clipped], [[0.6, 0.8], [0.3, 0.4], [0, 0]])


def test_server_optimisers_by_hand():
    """tau = 1, so v_0 = 1; g = 2 twice."""
    w, g = np.zeros(1), vector(2)
    momentum = ServerOptimiser("momentum", 1, beta1=0.5)
    same(momentum.step(w, g, 0.1), [-0.2])
    same(momentum.step(w, g, 0.1), [-0.3])
    adam = ServerOptimiser("adam", 1, beta1=0.5, beta2=0.5, tau=1.0)
    same(adam.step(w, g, 1.0), [-1 / (2.5**0.5 + 1)])
    same(adam.step(w, g, 1.0), [-1.5 / (3.25**0.5 + 1)])
    yogi = ServerOptimiser("yogi", 1, beta1=0.5, beta2=0.5, tau=1.0)
    same(yogi.step(w, g, 1.0), [-1 / (3**0.5 + 1)])
    same(yogi.step(w, g, 1.0), [-1.5 / (5**0.5 + 1)])


def test_a_cosine_with_an_almost_zero_vector_is_zero():
    assert cos(vector(1, 0), vector(1e-13, 0)) == 0
    assert cos(vector(1, 0), vector(2, 0)) == 1
