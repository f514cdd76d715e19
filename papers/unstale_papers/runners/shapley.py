"""The worth of each client's last update when one of them has been silent for some rounds.

Figure 1 of the paper.
Source: FedAR (Jiang et al., 2024), docs/methods/measures.md#shapley-share

Legend: n clients, d parameters.
"""

from collections.abc import Callable, Collection, Mapping
from itertools import combinations
from math import comb
from typing import Any

import torch
from torch import Tensor

from unstale.config import build
from unstale.config.settings import Settings
from unstale.config.workspace import TrainingContext, training_context
from unstale.errors import UserError
from unstale.learner.versions import Version
from unstale_client.net.clock import now_s
from unstale_papers.record import Record
from unstale_papers.runners.run import dataset_of
from unstale_papers.runners.stale_updates import moved_by

CLIENTS_MAX = 12  # 2^12 sets of clients are evaluated
SILENT = 0  # id of the silent client


def measure(settings: Settings, options: Mapping[str, Any], *, on_progress: Callable[[float], None]) -> Record:
    """Average the last update of every client in each round, and divide the last model's gain among them.

    options: `silent`, the number of last rounds in which client 0 sends nothing; it always participates in the first.
    v(S) is the test accuracy of the last model w, moved by the mean of the last updates of the clients in S; v of the
    empty set is that of w. found: `Shapley value` and `Shapley share` of client 0, the share of the sum of absolute
    values, None where that is 0; `Shapley values` of all; `accuracy`, v of the empty set. Raises UserError.
    """
    started_s = now_s()
    count = settings.clients
    if count > CLIENTS_MAX:
        raise UserError(f"clients is {count}, whose sets are too many to measure each, expected at most {CLIENTS_MAX}")
    context = training_context(settings, data=dataset_of(settings.data))
    silent = min(int(options["silent"]), settings.rounds - 1)
    model_d, last = _averaged(settings, context, silent, on_progress)
    evaluate = build.evaluation(context)
    measured = 0

    def worth(those: Collection[int]) -> float:
        nonlocal measured
        moved_d = model_d - torch.stack([last[i] for i in sorted(those)]).mean(0) if those else model_d
        accuracy = evaluate(Version(model_d=moved_d, buffers_b=context.model.buffers_b)).accuracy
        measured += 1
        on_progress(0.5 + 0.5 * measured / 2**count)
        return accuracy

    empty = worth(())
    values = shapley_values(count, lambda those: worth(those) if those else empty)
    total = sum(map(abs, values))  # a signed sum may be 0 or less
    return Record(
        found={
            "Shapley value": values[SILENT],
            "Shapley share": values[SILENT] / total if total else None,
            "Shapley values": values,
            "accuracy": empty,
        },
        seconds=now_s() - started_s,
    )


def shapley_values(count: int, worth: Callable[[frozenset[int]], float]) -> list[float]:
    """The value of each of n players, from the worth of each set of players:

        phi_i = sum over S without i of |S|! (n - |S| - 1)! / n! (v(S + i) - v(S))

    count: n. worth: v, asked once for each set.
    """
    players = range(count)
    of = {
        frozenset(those): worth(frozenset(those)) for size in range(count + 1) for those in combinations(players, size)
    }
    return [
        sum(
            (of[those | {player}] - value) / (count * comb(count - 1, len(those)))
            for those, value in of.items()
            if player not in those
        )
        for player in players
    ]


def _averaged(
    settings: Settings, context: TrainingContext, silent: int, on_progress: Callable[[float], None]
) -> tuple[Tensor, dict[int, Tensor]]:
    """The last model [d], and the last update of each client, [d] in parameter units."""
    rate_of = build.learning_rate(settings.training, settings.rounds)
    model_d = context.model.parameters_d.clone()
    last: dict[int, Tensor] = {}
    for version in range(settings.rounds):
        for client in range(settings.clients):
            if client != SILENT or version < settings.rounds - silent:
                rate = rate_of(version)
                local = context.trainer.train(
                    client, version, model_d, rate, buffers_b=context.model.buffers_b, version=version
                )
                last[client] = moved_by(local)
        model_d = model_d - torch.stack([last[client] for client in sorted(last)]).mean(0)
        on_progress(0.5 * (version + 1) / settings.rounds)
    return model_d, last
