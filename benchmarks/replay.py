"""Runs of 500 rounds over loopback, recorded and replayed: every version must have the same digest.

For each policy a server and two client processes train a small network on scikit-learn's digits, and store every
update; then `unstale replay` replays the run in a process of its own, and compares each digest.

    python -m benchmarks.replay [--quick]
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import processes, report

ROUNDS = 500
CLIENTS = 20
K = 4


@dataclass(frozen=True, slots=True)
class Case:
    """A policy, with the loop and training of its paper."""

    policy: str
    trigger: str
    training: str


CASES = (Case("fedbuff", "buffered", "sgd"), Case("wkafl", "k-async", "gradient"), Case("fedhist", "k-async", "sgd"))


def run(rounds: int) -> list[dict[str, str]]:
    """A row per policy. Raises RuntimeError or CalledProcessError when a process fails."""
    rows = []
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            started_s = time.perf_counter()
            outcome = record(case, rounds, Path(folder))
            recorded_s = time.perf_counter()
            found = replay(Path(folder))
            replayed_s = time.perf_counter()
            size_bytes = sum(path.stat().st_size for path in (Path(folder) / "run").rglob("*"))
        assert found["parted"] is not None or found["last"] == rounds, found
        rows.append(
            {
                "policy": f"{case.policy}, {case.trigger}",
                "rounds": str(found["rounds"]),
                "updates": f"{found['updates']:,}",
                "digests equal": "all" if found["parted"] is None else f"to version {found['last']}",
                "accuracy": f"{outcome['test_accuracy']:.4f}",
                "run": f"{outcome['seconds']:.1f} s",
                "with its processes": f"{recorded_s - started_s:.1f} s",
                "replay": f"{replayed_s - recorded_s:.1f} s",
                "directory": report.megabytes(size_bytes),
            }
        )
    return rows


def record(case: Case, rounds: int, folder: Path) -> dict[str, Any]:
    """Record a run in `run` below a folder; return the server's last line."""
    of_the_run = (
        *("--policy", case.policy, "--trigger", case.trigger, "--k", str(K), "--training", case.training),
        *("--rounds", str(rounds), "--clients", str(CLIENTS), "--device", "cpu"),
        *("--address", "tcp://127.0.0.1:0", "--set", "server.http_address=null"),
        *("--run", "run", "--run.keep-updates", "--json"),
    )
    said = processes.run(folder, of_the_run, clients=CLIENTS)
    last: dict[str, Any] = json.loads(said.splitlines()[-1])
    return last


def replay(folder: Path) -> dict[str, Any]:
    """The output of `unstale replay` for the run."""
    found = subprocess.run(
        [*processes.UNSTALE, "replay", "run", "--json"],
        cwd=folder, env=processes.environment(), stdout=subprocess.PIPE, text=True, check=False,
        timeout=processes.LIMIT_S,
    )  # fmt: skip
    if found.returncode not in (0, 1):
        raise subprocess.CalledProcessError(found.returncode, found.args)
    said: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return said


def _table(rows: Sequence[dict[str, str]]) -> str:
    return report.table(list(rows[0]), [list(row.values()) for row in rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="60 rounds")
    arguments = parser.parse_args()
    rows = run(60 if arguments.quick else ROUNDS)
    print(
        f"{CLIENTS} clients in two processes, K = {K}, digits_cnn on digits, durability normal, every update kept. "
        "`replay` includes the start of its process.\n"
    )
    print(_table(rows))
    if any(row["digests equal"] != "all" for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
