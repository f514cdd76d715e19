"""Compensation before a policy: the golden vector "DC".

Source: docs/methods/README.md#golden-vectors

Legend: d parameters.
"""

import torch
from torch import Tensor

from unstale.compensators import CompensatorContext, LocalSteps, StaleRound, StaleUpdate, create
from unstale.conformance.appendix_b import RATE, W
from unstale.conformance.finding import Finding
from unstale.conformance.golden import Round, Sequel, reproduces

POLICY = "direct"
CASE = "appendix B, DC: after first-order compensation"

_U = (0.1, -0.2, 0.0, -0.05)
"""The update, in parameter units, from w_b = 0."""
_AFTER = (-0.004, 0.032, 0.3, 0.05)


def first_order(device: torch.device) -> Finding:
    """Compensate the update to first order, and let the policy apply it."""
    round_ = Round(
        rate=RATE,
        clients=(0,),
        staleness=(0,),
        examples=(1,),
        batch_sizes=(1,),
        losses=(1.0,),
        local_rates=(RATE,),
        gradients=(_estimate(device).tolist(),),
        model=_AFTER,
    )
    run = {"clients": 5, "dimension": len(W), "round_size": 5}
    return reproduces(Sequel(policy=POLICY, case=CASE, run=run, model=W, rounds=(round_,)), device)


def _estimate(device: torch.device) -> Tensor:
    """What the compensator makes of the update, a pseudo-gradient [d]; the update where it leaves it alone."""
    context = CompensatorContext(network=None, steps=LocalSteps(), seed=0, device=device)
    compensator = create("first-order", {}, context)
    assert compensator is not None
    update = StaleUpdate(
        client_id=0,
        task_id=1,
        base_version=0,
        staleness=1,
        num_examples=1,
        local_rate=RATE,
        vector_d=torch.tensor(_U, device=device) / RATE,
        kept_base_d=torch.zeros(len(_U), device=device),
    )
    stale = StaleRound(
        version=1, model_d=torch.tensor(W, device=device), buffers_b=torch.empty(0, device=device), updates=(update,)
    )
    return compensator.take(stale, compensator.make(stale)).vectors.get(0, update.vector_d)
