"""What a GPU is needed for: its tests, conformance, speed, and cells of a table until time is out.

A part gets at most half of the time that is left, and the last one all of it. Then it is stopped with its processes;
its output until then is kept. The folder gets `results.md`, with the last lines of each part, and `results.jsonl`, with
its exit code (null if it was stopped) and seconds; both are complete after each part.

    scripts/on_gpu [--python PYTHON] [--minutes 25] [--out FOLDER] [--device cuda] [--only PART ...] [--quick]
                   [--data mnist=FILE]
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

# Folders of tests that need packages of their own, and no GPU: an error in them would end the part before its tests.
IGNORED = " ".join(f"--ignore=tests/{folder}" for folder in ("browser", "kubernetes", "report"))
PARTS = {  # in this order; a part with {data} is left out without that option
    "machine": "benchmarks.gpu_machine --device {device}",
    "tests": f"pytest -q -m gpu -p no:cacheprovider --continue-on-collection-errors {IGNORED} tests",
    "conformance": "unstale conformance --device {device}",
    "fh-t1": "benchmarks.gpu_simulation fh-t1 --device {device}{quick}",
    "pfl-cifar10": "benchmarks.gpu_simulation pfl-cifar10 --device {device}{quick}",
    "determinism": "benchmarks.gpu_determinism --device {device}{quick}",
    "inversion": "benchmarks.gpu_inversion --device {device}{quick}",
    "policies": "benchmarks.gpu_policies --device {device}{quick}",
    "rounds": "benchmarks.gpu_rounds --device {device}{quick}",
    "simulation": "benchmarks.simulation --quick --device {device}",
    "simulation-cpu": "benchmarks.simulation --quick",
    "gi-t3": "unstale reproduce run gi-t3 --seeds 1 --device {device} --data {data} --store {out}/gi-t3",
}

LINES = 120  # of each part's output


def run(arguments: list[str], limit_s: float, log: Path) -> dict[str, object]:
    """Run one part; its output goes to a file. Its exit code is None if it was stopped."""
    began_s = time.monotonic()
    with log.open("w") as file:
        command = [sys.executable, "-m", *arguments]
        part = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = part.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(part.pid, signal.SIGKILL)
            part.wait()
            code = None
    return {"rc": code, "seconds": round(time.monotonic() - began_s, 1)}


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/on_gpu", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=25.0, help="after which it ends; default: 25")
    parser.add_argument("--out", type=Path, default=Path("gpu-results"), help="folder of the results")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="shorter benchmarks, to try the script without a GPU")
    parser.add_argument("--data", metavar="NAME=FILE", help="the data of gi-t3, such as mnist=mnist.npz")
    given = parser.parse_args()
    end_s = time.monotonic() + 60 * given.minutes
    given.out.mkdir(parents=True, exist_ok=True)
    failed, stopped = [], []
    with (given.out / "results.md").open("w") as report, (given.out / "results.jsonl").open("w") as lines:
        for name in given.only:
            left_s = end_s - time.monotonic()
            if left_s < 1 or ("{data}" in PARTS[name] and given.data is None):
                print(f"{name}: left out, {'no time is left' if left_s < 1 else 'it needs --data'}")
                continue
            quick = " --quick" * given.quick
            command = PARTS[name].format(device=given.device, data=given.data, out=given.out, quick=quick)
            log = given.out / "part.txt"
            result = run(command.split(), left_s if name == given.only[-1] else left_s / 2, log)
            print(f"{name}: {result}")
            lines.write(json.dumps({"part": name, "command": command, **result}) + "\n")
            output = "\n".join(log.read_text(errors="replace").splitlines()[-LINES:])
            report.write(f"## {name}\n\n`python -m {command}`\n\n{output}\n\n")
            log.unlink()
            report.flush()
            lines.flush()
            failed += [name] if result["rc"] not in (0, None) else []
            stopped += [name] if result["rc"] is None else []
    print(f"failed: {', '.join(failed) or 'none'}; stopped before their end: {', '.join(stopped) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
