"""Runs played and compared, one after the other or several at a time, and told as a table."""

import logging
import multiprocessing
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from crash.books import Books, Found
from crash.plan import Plan, drawn
from crash.play import FailureError, Kill, Play

KILLS_EACH = 10  # of a run

TOLD: list[str] = []
"""What the tests of this process have to tell at their end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A run and what came of it. found: None for one that failed, and then `failure` says how."""

    plan: Plan
    kills: list[Kill]
    found: Found | None
    failure: str | None = None


def attempt(plan: Plan) -> Attempt:
    """Play a run and compare. The folder of one that fails stays."""
    folder = Path(tempfile.mkdtemp(prefix=f"unstale-crash-{plan.seed}-{plan.number}-"))
    play = Play(plan, folder)
    logging.disable()
    try:
        found = Books(play.run()).check()
    except Exception as error:  # noqa: BLE001  (told with all that is known)
        why = str(error) if isinstance(error, FailureError) else traceback.format_exc()
        failure = f"{play.logs()}\n\n{plan.name}\n{why}\n\nIts folder is {folder}\n{plan.command}\n"
        return Attempt(plan=plan, kills=play.kills, found=None, failure=failure)
    finally:
        logging.disable(logging.NOTSET)
    shutil.rmtree(folder)
    return Attempt(plan=plan, kills=play.kills, found=found)


def attempts(seed: int, kills: int, *, processes: int = 1) -> Iterator[Attempt]:
    """Runs until so many processes were killed, or until some have failed. processes: that play them; 1 is this one."""
    if processes == 1:
        yield from _attempts(seed, kills, map)
        return
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from _attempts(seed, kills, pool.map)


def _attempts(
    seed: int, kills: int, played: Callable[[Callable[[Plan], Attempt], Iterable[Plan]], Iterable[Attempt]]
) -> Iterator[Attempt]:
    done = number = failures = 0
    while done < kills and not failures:
        left = kills - done
        shares = [min(KILLS_EACH, left - at) for at in range(0, left, KILLS_EACH)]
        plans = [drawn(seed, number + place, share) for place, share in enumerate(shares)]
        number += len(plans)
        for made in played(attempt, plans):
            done += len(made.kills)
            failures += made.failure is not None
            yield made


def table(made: Attempt) -> Iterator[str]:
    """The lines of a run."""
    found = made.found
    said = (
        "FAILED"
        if found is None
        else f"{found.accepted} updates counted, {found.acks} acks heard, same digests"
    )
    yield f"{made.plan.name}: {said}"
    yield f"  {'killed':<12} {'life':>4} {'second':>7} {'version':>7} {'next round':>10}  how"
    for kill in made.kills:
        following = "over" if kill.next_s is None else f"{kill.next_s:.2f} s"
        yield f"  {kill.process:<12} {kill.life:>4} {kill.at_s:>7.2f} {kill.version:>7} {following:>10}  {kill.how}"
