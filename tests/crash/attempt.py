"""Runs executed and checked, one after the other or several at a time, and printed as a table."""

import logging
import multiprocessing
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from crash.checks import Checks, Found
from crash.plan import Plan, drawn
from crash.play import Death, FailureError, Play

KILLS_EACH = 10  # of a run

"""Results of the tests of this process, for the summary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A run and its result. found: None for a failed one, whose `failure` has the reason."""

    plan: Plan
    deaths: list[Death]
    found: Found | None
    failure: str | None = None

    @property
    def kills(self) -> int:
        return sum(death.is_kill for death in self.deaths)


def attempt(plan: Plan) -> Attempt:
    """Execute and check a run. The folder of a failed one is kept."""
    folder = Path(tempfile.mkdtemp(prefix=f"unstale-crash-{plan.seed}-{plan.number}-"))
    play = Play(plan, folder)
    logging.disable()
    try:
        found = Checks(play.run()).check()
    except Exception as error:  # noqa: BLE001  (reported with the details)
        why = str(error) if isinstance(error, FailureError) else traceback.format_exc()
        failure = f"{play.logs()}\n\n{plan.name}\n{why}\n\nIts folder is {folder}\n{plan.command}\n"
        return Attempt(plan=plan, deaths=play.deaths, found=None, failure=failure)
    finally:
        logging.disable(logging.NOTSET)
    shutil.rmtree(folder)
    return Attempt(plan=plan, deaths=play.deaths, found=found)


def attempts(seed: int, kills: int, *, processes: int = 1) -> Iterator[Attempt]:
    """Runs until so many processes were killed, or some runs failed. processes: for the runs; 1 is this one."""
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
            done += made.kills
            failures += made.failure is not None
            yield made


def table(made: Attempt) -> Iterator[str]:
    """The lines of a run."""
    found = made.found
    sent = "FAILED" if found is None else f"{found.accepted} updates counted, {found.acks} acks heard, same digests"
    yield f"{made.plan.name}: {sent}"
    yield f"  {'killed':<12} {'life':>4} {'second':>7} {'version':>7} {'next round':>10}  how"
    for death in made.deaths:
        following = "over" if death.next_s is None else f"{death.next_s:.2f} s"
        when = f"{death.life:>4} {death.at_s:>7.2f} {death.version:>7}"
        yield f"  {death.process:<12} {when} {following:>10}  {death.how}"
