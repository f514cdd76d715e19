"""Fuzz: `python -m fuzz --seconds 60` or `--runs 1000000` for every target, `python -m fuzz TARGET ...` for one with
whatever options libFuzzer takes. README.md says more.
"""

import argparse
import logging
import subprocess
import sys
import zlib
from collections.abc import Callable, Hashable
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
TARGETS = tuple(sorted(path.stem for path in (Path(__file__).parent / "targets").glob("[a-z]*.py")))
FOUND = Path(".fuzz")  # below the working directory: new inputs, and those that broke something
NOT_INSTRUMENTED = ("unstale.coordinator.invariants",)
INSTRUMENTED = (
    "unstale_proto",
    "unstale.server",
    "unstale.coordinator",
    "unstale.translate",
    "unstale.learner",
)
MEMORY_MB_MAX = 2048  # of the process, most of which is PyTorch
SECONDS_MAX = 10  # of one input, which takes less than a hundredth
FACTS_MAX = 4096  # that are told apart, give or take a few that meet


def main(arguments: list[str]) -> int:
    if find_spec("atheris") is None:
        say(
            "atheris is not installed (it is made for Linux on x86-64): nothing is fuzzed, install the extra 'fuzz'"
        )
        return 0
    if arguments and arguments[0] in TARGETS:
        fuzz(arguments[0], arguments[1:])
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="for all targets together")
    parser.add_argument("--runs", type=int, help="inputs for each target, however long they take")
    told = parser.parse_args(arguments)
    bound = (
        f"-max_total_time={max(1, told.seconds // len(TARGETS))}"
        if told.runs is None
        else f"-runs={told.runs}"
    )
    return max(start(target, bound) for target in TARGETS)


def start(target: str, *options: str) -> int:
    """Fuzz in a process of its own, which ends with the fuzzing. Its exit status."""
    found = FOUND / target
    found.mkdir(parents=True, exist_ok=True)
    say(f"fuzzing {target}")
    command = [sys.executable, "-m", "fuzz", target, *options, f"-artifact_prefix={FOUND}/{target}-"]
    return subprocess.run([*command, str(found), str(CORPUS / target)], check=False).returncode


def fuzz(target: str, options: list[str]) -> None:
    """Does not return."""
    import atheris  # not installed everywhere

    with atheris.instrument_imports(include=list(INSTRUMENTED), exclude=list(NOT_INSTRUMENTED)):
        run = import_module(f"fuzz.targets.{target}").run
    logging.disable()
    note = marker([atheris.instrument_func(eval("lambda: None")) for _ in range(FACTS_MAX)])
    limits = [f"-rss_limit_mb={MEMORY_MB_MAX}", f"-timeout={SECONDS_MAX}"]
    atheris.Setup([sys.argv[0], *limits, *options], lambda data: run(data, note), internal_libfuzzer=True)
    atheris.Fuzz()


def marker(places: list[Callable[[], None]]) -> Callable[[Hashable], None]:
    """Makes code that is reached out of facts, for libFuzzer knows nothing else."""

    @lru_cache(FACTS_MAX)
    def place(fact: Hashable) -> Callable[[], None]:
        return places[zlib.crc32(repr(fact).encode(errors="replace")) % len(places)]

    return lambda fact: place(fact)()


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
