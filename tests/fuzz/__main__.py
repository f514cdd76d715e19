"""Fuzz: `python -m fuzz --seconds 60` or `--runs 1000000` for every target, `python -m fuzz TARGET ...` for one with
any options of libFuzzer. README.md has the details.
"""

import argparse
import logging
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable, Hashable
from contextlib import redirect_stderr
from functools import lru_cache
from importlib.util import find_spec
from io import StringIO

from fuzz.keep import CORPUS, FOUND, TARGETS, keep, target_named

INSTRUMENTED = ("unstale", "unstale_proto")
NOT_INSTRUMENTED = (
    "unstale.cli", "unstale.config", "unstale.injector",
    "unstale.policies", "unstale.simulator", "unstale.toxics", "unstale.training",
)  # fmt: skip
LENGTHS_MAX = {"header": 1024, "receive": 64, "endure": 64, "found": 64}  # bytes: a step of a run takes about four
MEMORY_MB_MAX = 2048  # of the process, of which PyTorch takes 600
SECONDS_MAX = 10  # per input, which usually takes less than a tenth
FACTS_MAX = 4096  # distinguishable facts, apart from collisions
MISSING = "atheris is not installed, so nothing is fuzzed; it is made for Linux on x86-64: pip install 'unstale[fuzz]'"


def main(arguments: list[str]) -> int:
    if arguments and arguments[0] in TARGETS:
        return fuzz(arguments[0], arguments[1:])
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="for all targets together")
    parser.add_argument("--runs", type=int, help="inputs for each target, without a time limit")
    parser.add_argument("--seed", type=int, default=0, help="of libFuzzer's choices; 0 for a new one each time")
    parser.add_argument("--keep", action="store_true", help="choose the inputs of the repository from the found ones")
    options = parser.parse_args(arguments)
    if options.keep:
        logging.disable()
        for target in TARGETS:
            say(f"{target}: {keep(target)} files kept")
        return 0
    if find_spec("atheris") is None:
        say(MISSING)
        return 0
    seconds = max(1, options.seconds // len(TARGETS))
    bound = f"-max_total_time={seconds}" if options.runs is None else f"-runs={options.runs}"
    return max(start(target, bound, f"-seed={options.seed}") for target in TARGETS)


def start(target: str, *options: str) -> int:
    """Fuzz in a separate process. Returns its exit status."""
    found = FOUND / target
    found.mkdir(parents=True, exist_ok=True)
    say(f"fuzzing {target}")
    quietly = ["-verbosity=0", "-print_final_stats=1", f"-artifact_prefix={FOUND}/{target}-"]
    command = [sys.executable, "-m", "fuzz", target, *options, *quietly, str(found), str(CORPUS / target)]
    return subprocess.run(command, check=False).returncode


def fuzz(target: str, options: list[str]) -> int:
    """Returns only when atheris is missing."""
    try:
        import atheris  # not installed everywhere
    except ImportError:
        say(MISSING)
        return 2
    with (
        redirect_stderr(StringIO()),  # a line for each module
        atheris.instrument_imports(include=list(INSTRUMENTED), exclude=list(NOT_INSTRUMENTED)),
    ):
        run = target_named(target)
    logging.disable()
    note = marker([atheris.instrument_func(eval("lambda: None")) for _ in range(FACTS_MAX)])

    def run_one(data: bytes) -> None:
        try:
            run(data, note)
        except BaseException:
            signal.setitimer(signal.ITIMER_REAL, 0)  # libFuzzer's clock could end it before the input is written
            raise

    bounds = [f"-max_len={LENGTHS_MAX[target]}", f"-rss_limit_mb={MEMORY_MB_MAX}", f"-timeout={SECONDS_MAX}"]
    atheris.Setup([sys.argv[0], *bounds, *options], run_one)
    atheris.Fuzz()
    return 0


def marker(places: list[Callable[[], None]]) -> Callable[[Hashable], None]:
    """Converts facts to covered code, the only feedback of libFuzzer."""

    @lru_cache(FACTS_MAX)
    def place(fact: Hashable) -> Callable[[], None]:
        return places[zlib.crc32(repr(fact).encode(errors="replace")) % len(places)]

    return lambda fact: place(fact)()


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
