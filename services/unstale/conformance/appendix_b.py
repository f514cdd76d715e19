"""The golden vectors: one round of three updates, of each policy.

Source: docs/methods/README.md#golden-vectors

Left out: FedHist, whose row begins with utilities that no short history gives; its sequences cover it.

Legend: d parameters; N clients; w the model.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from unstale.compensators import CompensatorContext, LocalSteps, StaleRound, StaleUpdate, create
from unstale.conformance.finding import Finding
from unstale.conformance.golden import Round, Rows, Sequel, reproduces, spelled

W = (0.1, -0.2, 0.3, 0.0)
RATE = 0.1


def _round(clients: Sequence[int], gradients: Rows, **others: Any) -> Round:
    """Updates of these clients; fresh, and with one example each, where nothing else is said."""
    ones, rates = [1] * len(clients), [RATE] * len(clients)
    fresh: dict[str, Any] = {"staleness": [0] * len(clients), "examples": ones, "batch_sizes": ones}
    fresh |= {"losses": [1.0] * len(clients), "local_rates": rates}
    return Round(rate=RATE, clients=clients, gradients=gradients, **{**fresh, **others})


ABC = _round(
    (2, 0, 4),
    ((1.0, 0.0, 0.0, 0.0), (0.6, 0.8, 0.0, 0.0), (0.0, -0.5, 1.5, 0.5)),
    staleness=(0, 1, 3),
    examples=(10, 30, 20),
    batch_sizes=(10, 30, 20),
)
"""A, B and C, in order of arrival."""
_OLD = _round((0, 1), ((0.1, 0.1, 0.0, 0.0), (0.2, 0.2, 0.2, 0.2)))
"""What MIFA, FedVARP and FedAR remember: G_0 and G_1."""
_NOBODY = _round((), ())
_ZEROS = (0.0, 0.0, 0.0, 0.0)


def _sequel(policy: str, case: str, *rounds: Round, **settings: Any) -> Sequel:
    run = {"clients": 5, "dimension": len(W), "round_size": 5}
    return Sequel(policy=policy, case=case, run=run, settings=settings, model=W, rounds=rounds)


def _example(policy: str, *result: float, before: Sequence[Round] = (), **settings: Any) -> Sequel:
    """Some rounds that fill the memory, then A, B and C, and w after them."""
    # Base models are the current one: A, B and C are as stale as they say, but no version of the model is far away.
    filling = (*[_NOBODY] * (3 - len(before)), *before)
    case = "appendix B" + spelled({key: value for key, value in settings.items() if key != "probabilities"})
    return _sequel(policy, case, *filling, replace(ABC, model=result), **settings)


def _wkafl(*result: float, **settings: Any) -> Sequel:
    """e_prev = (0.5, 0.5, 0, 0): the estimate of one such update, in the round before."""
    common = {"alpha": 0.1, "clip_bound": 1.2, "beta": 10.0, "similarity_min": 0.3, "gamma": 0.1}
    before = [_round((1,), ((0.5, 0.5, 0.0, 0.0),))]
    example = _example("wkafl", *result, before=before, **common, **settings)
    return replace(example, case=f"appendix B{spelled(settings) or ', stage 1'}")


_SCAFFOLD = _sequel(
    "scaffold",
    "appendix B, c",
    _round((1,), (_ZEROS,), extras=((0.5, 0.0, 0.0, 0.0),), sent=(0.1, 0.0, 0.0, 0.0)),
    _round(
        (2, 0, 4),
        (_ZEROS, _ZEROS, _ZEROS),
        extras=((0.2, 0.0, 0.0, 0.0), (0.0, 0.3, 0.0, 0.0), (0.0, 0.0, 0.1, 0.0)),
        sent=(0.14, 0.06, 0.02, 0.0),
    ),
)
_WEIGHTED = _sequel(
    "weighted",
    "appendix B, staleness 40",
    *[_NOBODY] * 40,
    _round((2,), ((1.0, -2.0, 0.0, -0.5),), staleness=(40,), model=(0.075, -0.15, 0.3, 0.0125)),
)

EXAMPLES = (
    _example("fedavg", 0.04666667, -0.21, 0.25, -0.01666667),
    _example("fedavg", 0.05333333, -0.22333333, 0.25, -0.01666667, weighting="samples"),
    _example("dynsgd", 0.02571429, -0.21571429, 0.27857143, -0.00714286),
    _example("dynsgd", 0.05666667, -0.20916667, 0.2875, -0.00416667, normalise=False),
    _example("sasgd", 0.05666667, -0.20916667, 0.2875, -0.00416667),
    _example("twafl", 0.03245464, -0.21824971, 0.27200425, -0.00933192, weighting="equal"),
    _example("twafl", 0.06126057, -0.22279208, 0.28008517, -0.00663828, normalise=False),
    _example("refl", 0.03044164, -0.20686497, 0.26758901, -0.01080366),
    _example("fedbuff", 0.05252453, -0.21052285, 0.275, -0.00833333),
    _example("fedasync", 0.058, -0.20875879, 0.255, -0.015),
    _example(
        "gsgm",
        *(0.00166667, -0.21, 0.25, -0.01666667),
        before=[_round((0, 1, 2, 3, 4), [(0.5, 0.0, 0.0, 0.0)] * 5)],  # all of a cycle: M is their mean
        alpha=0.9,
    ),
    _example("fedavg-is", 0.051, -0.192, 0.18, -0.04, probabilities=(0.5, 1.0, 0.8, 0.3, 0.25)),
    _example("mifa", 0.064, -0.21, 0.266, -0.014, before=[_OLD], init="zeros"),
    _example("fedvarp", 0.044, -0.21266667, 0.246, -0.02066667, before=[_OLD]),
    _example(
        "fedar",
        *(0.05370537, -0.21379463, 0.25620537, -0.01879463),
        before=[_OLD, *[_NOBODY] * 8],  # client 1 was last seen nine rounds ago
        cutoff="convex",
        t0=19.0,  # g(10) = 19 + 10 / 10 = 20
        rho=0.1,
    ),
    _SCAFFOLD,
    _WEIGHTED,
    _wkafl(0.00454578, -0.22409157, 0.3, 0.0),
    _wkafl(0.02789700, -0.21797945, 0.3, 0.0, stage_two_round=0, stage_two_bound=1.0),
    _wkafl(0.02770696, -0.22552054, 0.27957370, -0.00680877, no_gradient_selection=True),
    _wkafl(0.00655151, -0.22267750, 0.29753142, -0.00082286, no_staleness=True),
    _wkafl(0.00789750, -0.21579501, 0.3, 0.0, no_non_iidness=True),
)


# --- compensation before a policy: the golden vector "DC" ---

COMPENSATED_POLICY = "direct"
COMPENSATED_CASE = "appendix B, DC: after first-order compensation"


def first_order(device: torch.device) -> Finding:
    """Compensate an update from w_b = 0 to first order, and let the policy apply it."""
    update = StaleUpdate(
        client_id=0,
        task_id=1,
        base_version=0,
        staleness=1,
        num_examples=1,
        local_rate=RATE,
        vector_d=torch.tensor((0.1, -0.2, 0.0, -0.05), device=device) / RATE,  # from parameter units
        kept_base_d=torch.zeros(len(W), device=device),
    )
    model_d = torch.tensor(W, device=device)
    stale = StaleRound(version=1, model_d=model_d, buffers_b=torch.empty(0, device=device), updates=(update,))
    context = CompensatorContext(network=None, steps=LocalSteps(), seed=0, device=device)
    compensator = create("first-order", {}, context)
    assert compensator is not None
    vectors = compensator.take(stale, compensator.make(stale)).vectors
    estimate_d = vectors.get(0, update.vector_d)  # the update where the compensator leaves it alone
    compensated = _round((0,), (estimate_d.tolist(),), model=(-0.004, 0.032, 0.3, 0.05))
    return reproduces(_sequel(COMPENSATED_POLICY, COMPENSATED_CASE, compensated), device)
