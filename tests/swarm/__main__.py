"""Many seeds, over several processes, or one with its transcript: `python -m swarm --seeds 1000`, `--seed 17`."""

import argparse
import logging
import multiprocessing
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from swarm.attempt import attempt, failed
from swarm.seed import FailureError, run
from unstale_client.net.clock import now_s

PROCESSES = 2


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m swarm", description=__doc__)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seed", type=int, help="run this seed")
    which.add_argument("--seeds", type=int, default=1000, help="number of seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--verbose", action="store_true", help="with --seed: print every event")
    parser.add_argument("--processes", type=int, default=PROCESSES)
    options = parser.parse_args()
    if options.seed is not None:
        return one(options.seed, verbose=options.verbose)
    return many(range(options.first, options.first + options.seeds), options.processes)


def one(seed: int, *, verbose: bool) -> int:
    logging.disable()
    try:
        report = run(seed, verbose=say if verbose else None)
    except FailureError as failure:
        say(failed(failure))
        return 1
    say(f"seed {seed} passes, digest {report.digest}")
    table(Counter(report.seen))
    return 0


def many(seeds: range, processes: int) -> int:
    started_s = now_s()
    seen: Counter[str] = Counter()
    failures = 0
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=spawn) as pool:  # raises when one of them dies
        for done, outcome in enumerate(pool.map(attempt, seeds, chunksize=4), start=1):
            if isinstance(outcome, str):
                failures += 1
                say(outcome)
            else:
                seen.update(outcome.seen)
            if done % 500 == 0:
                say(f"{done} seeds, {failures} failed, {now_s() - started_s:.0f} s")
    seconds = now_s() - started_s
    rate = len(seeds) / seconds
    say(f"{len(seeds)} seeds from {seeds.start} on, {failures} failed, {seconds:.0f} s, {rate:.1f} a second")
    table(seen)
    return 1 if failures else 0


def table(seen: Counter[str]) -> None:
    for name, count in sorted(seen.items()):
        say(f"  {name:<28} {count:>12,}")


if __name__ == "__main__":
    sys.exit(main())
