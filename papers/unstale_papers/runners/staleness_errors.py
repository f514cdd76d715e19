"""Errors of estimates of fresh updates, by staleness.

Figures 2 and 7 of the paper.
Source: Gradient inversion (Wang & Gao, 2023), docs/methods/measures.md#compensation-errors
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

from unstale.compensators import MeasuredError, StaleRound
from unstale.compensators.compensator import UNCHANGED
from unstale.compensators.errors import measured
from unstale.config.compensation import compensator
from unstale.config.settings import Settings
from unstale_client.net.clock import now_s
from unstale_papers.record import Record
from unstale_papers.runners.stale_updates import Played, played


def measure(settings: Settings, options: Mapping[str, Any], *, on_progress: Callable[[float], None]) -> Record:
    """Compare the compensated updates of late clients with their updates from the last model.

    options: `staleness`, the ages of the base models, rounds, at most the age of the run. found: `L1 error at S` and
    `cosine error at S` for each, means over the clients that the scenario makes late; and both by staleness among
    `curves`.
    """
    started_s = now_s()
    now = settings.rounds
    staleness = sorted({min(int(rounds), now) for rounds in options["staleness"]})
    run = played(settings, [now, *(now - rounds for rounds in staleness)])
    errors = {}
    for place, rounds in enumerate(staleness):
        errors[rounds] = _errors(run, rounds)
        on_progress((place + 1) / len(staleness))
    by_kind = {
        "L1 error": {rounds: fmean(one.l1 for one in found) for rounds, found in errors.items()},
        "cosine error": {rounds: fmean(one.cosine for one in found) for rounds, found in errors.items()},
    }
    return Record(
        found={
            **{f"{kind} at {rounds}": mean for kind, means in by_kind.items() for rounds, mean in means.items()},
            "curves": {
                kind: {"x": "staleness, rounds", "points": list(means.items())} for kind, means in by_kind.items()
            },
        },
        seconds=now_s() - started_s,
    )


def _errors(run: Played, staleness: int) -> list[MeasuredError]:
    """Errors of one estimate for each late client, by a compensator in its initial state."""
    now = run.settings.rounds
    late = run.late()
    stale = StaleRound(
        version=now,
        model_d=run.versions[now].model_d,
        buffers_b=run.versions[now].buffers_b,
        updates=[run.update(client, now - staleness, task=now, staleness=staleness) for client in late],
    )
    context = run.context
    made = compensator(run.settings, context)
    vectors = {} if made is None else made.take(stale, made.make(stale)).vectors
    errors = []
    for number, update in enumerate(stale.updates):
        true = run.update(update.client_id, now, task=now)
        estimate_d = vectors.get(number, update.vector_d)
        method = UNCHANGED if made is None else run.settings.compensator.name
        errors.append(measured(replace(update, vector_d=true.vector_d), method, estimate_d, staleness))
    return errors
