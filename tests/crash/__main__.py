"""Many kills over several runs, or one run of a seed: `python -m crash --kills 200 --seed 5`, `--seed 5 --run 3`."""

import argparse
import sys
from collections.abc import Iterable

from crash.attempt import KILLS_EACH, Attempt, attempt, attempts, table
from crash.plan import drawn
from unstale_client.net.clock import now_s

PROCESSES = 2


def say(line: str) -> None:
    """Print a line without buffering."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m crash", description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="number of processes to kill")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run", type=int, help="run only this one")
    parser.add_argument("--processes", type=int, default=PROCESSES, help="runs at a time")
    options = parser.parse_args()
    started_s = now_s()
    say(f"seed {options.seed}")
    if options.run is not None:
        runs: Iterable[Attempt] = [attempt(drawn(options.seed, options.run, KILLS_EACH))]
    else:
        runs = attempts(options.seed, options.kills, processes=options.processes)
    kills = failures = 0
    for made in runs:
        kills += made.kills
        for line in table(made):
            say(line)
        if made.failure is not None:
            failures += 1
            say(made.failure)
    say(f"seed {options.seed}: {kills} kills, {failures} runs failed, {now_s() - started_s:.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
