"""The cost of inverting one update: seconds, and the remaining loss.

Tables 1 and 2 of the paper.
Source: Gradient inversion (Wang & Gao, 2023), docs/methods/measures.md#inversion
"""

from collections.abc import Callable, Mapping
from typing import Any

from unstale.config.settings import Settings
from unstale_client.net.clock import now_s
from unstale_papers.record import Record
from unstale_papers.runners.inverting import curve, inverted
from unstale_papers.runners.stale_updates import played


def measure(
    settings: Settings,
    options: Mapping[str, Any],  # noqa: ARG001  (there are none)
    *,
    on_progress: Callable[[float], None],
) -> Record:
    """Invert a late client's update from the last model of a run.

    found: `inversion seconds`, only of the iterations; `inversion loss`, |LU(w_b; D_rec) - u|_1 at the end; `inverted
    examples`, their number; and that loss over the iterations among `curves`.
    """
    started_s = now_s()
    run = played(settings, [settings.rounds])
    update = run.update(run.late_client(), settings.rounds, task=settings.rounds)
    inverting = run.inverting()
    begun_s = now_s()
    one, losses = inverted(inverting, update, on_iteration=on_progress)
    ended_s = now_s()
    return Record(
        found={
            "inversion seconds": ended_s - begun_s,
            "inversion loss": losses[-1],
            "inverted examples": len(one.now),
            "curves": {"inversion loss": {"x": "iteration", "points": curve(losses)}},
        },
        seconds=ended_s - started_s,
    )
