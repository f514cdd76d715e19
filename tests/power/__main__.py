"""Many power failures, or those of one seed: `python -m power --failures 1000`, `--seed 11 --durability normal`."""

import argparse
import sys

from power.attempt import Report, attempt

DURABILITIES = ("full", "normal")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m power", description=__doc__)
    parser.add_argument("--failures", type=int, default=200, help="power failures of each durability")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="this seed alone")
    parser.add_argument("--durability", choices=DURABILITIES, help="this durability alone")
    given = parser.parse_args()
    for durability in DURABILITIES if given.durability is None else (given.durability,):
        total, seed = Report(), given.first
        if given.seed is not None:
            total = attempt(given.seed, durability)
        while given.seed is None and total.failures < given.failures:
            total += attempt(seed, durability)
            seed += 1
        sys.stdout.write(f"{durability}: {total}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
