"""The mean squared gradient of runs of several lengths, or with several numbers of updates per round, and its order.

Source: ours, docs/methods/experiments.md#theory-experiments

Legend: K updates of a round, T rounds of a run.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from math import log, sqrt
from typing import Any

from unstale.config.settings import Settings
from unstale_client.net.clock import now_s
from unstale_papers.record import Record
from unstale_papers.runners import analytic

MEASURED = "mean squared gradient"
"""Name of the curve, over K or T."""


def measure(settings: Settings, options: Mapping[str, Any], *, on_progress: Callable[[float], None]) -> Record:
    """Simulate a run for each value, with the constant step c sqrt(K / T).

    options: of `analytic.run`; `step`, c; `over`, `K` or `T`; `values`, numbers of updates, or shares of the rounds of
    the settings. Values that are equal at a small scale are one. found: `mean squared gradient`, of the greatest
    value: |grad f(x)|^2 averaged over the rounds of a run; `exponent in K` or `exponent in T`, the slope of its
    logarithm over that of the value, None for a single value; `speed-up`, the square of the ratio of the first to the
    last, which is the ratio of the rounds where the order is 1 / sqrt(K T); and the curve. Raises UserError.
    """
    started_s = now_s()
    over = options["over"]
    runs = variants(settings, options)
    points = []
    refused: Counter[str] = Counter()
    for number, (value, variant) in enumerate(runs.items()):

        def share(done: float, before: int = number) -> None:
            on_progress((before + done) / len(runs))

        trajectory = analytic.run(variant, options, share)
        refused += trajectory.refused
        points.append([value, float(trajectory.squared_gradients_R.mean())])
    first, last = points[0][1], points[-1][1]
    return Record(
        found={
            MEASURED: last,
            f"exponent in {over}": analytic.slope([log(x) for x, _ in points], [log(y) for _, y in points]),
            "speed-up": (first / last) ** 2,
            "curves": {MEASURED: {"x": over, "points": points}},
            **({"refused": dict(refused)} if refused else {}),
        },
        seconds=now_s() - started_s,
    )


def variants(settings: Settings, options: Mapping[str, Any]) -> dict[int, Settings]:
    """The settings of each run, by K or T, ascending."""
    found = {}
    for value in options["values"]:
        rounds, updates = settings.rounds, settings.trigger.k
        assert updates is not None, "the loop has a K"
        if options["over"] == "T":
            rounds = number = max(1, round(value * rounds))
        else:
            updates = number = min(value, settings.clients)
        rate = options["step"] * sqrt(updates / rounds)
        found[number] = settings.model_copy(
            update={
                "rounds": rounds,
                "trigger": settings.trigger.model_copy(update={"k": updates}),
                "training": settings.training.model_copy(update={"learning_rate": rate}),
            }
        )
    return dict(sorted(found.items()))
