"""Whether a run on a GPU gives the same bits twice, and how far TF32 is from float32.

Each run is a simulation of `unstale simulate` in a process of its own; a digest is that of its last model. Runs without
TF32 have NVIDIA_TF32_OVERRIDE=0, which its libraries read; the others have what the product chooses. The convolutions
of a network are computed with and without TF32 and compared with the CPU in float64.

    python -m benchmarks.gpu_determinism [--device cuda]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

import torch
from torch import nn

from benchmarks import processes, report
from unstale.learner.device import choose

RUNS = (
    ("fedavg, digits_cnn", ("--policy", "fedavg", "--model", "digits_cnn")),
    ("wkafl, digits_cnn, gradient", ("--policy", "wkafl", "--model", "digits_cnn", "--training", "gradient")),
    ("fedhist, digits_cnn", ("--policy", "fedhist", "--model", "digits_cnn")),
    ("fedar, digits_cnn", ("--policy", "fedar", "--model", "digits_cnn")),
)
OF_ALL = ("--rounds", "30", "--clients", "20", "--trigger", "k-async", "--k", "5", "--json")


def digest(arguments: tuple[str, ...], device: str, environment: dict[str, str]) -> str:
    """Digest of the last model of a run. environment: variables besides those of this process."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*processes.UNSTALE, "simulate", *OF_ALL, *arguments, "--device", device]
        printed = subprocess.run(
            command, check=True, cwd=folder, env=os.environ | environment, stdout=subprocess.PIPE, text=True
        ).stdout
        last = json.loads(printed.splitlines()[-1])
        return str(last["model_digest"])


def error_of_convolutions(device: torch.device, *, tf32: bool) -> float:
    """Relative error of two convolutions of random images, by their norm in float64."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 32, 5), nn.ReLU(), nn.Conv2d(32, 64, 5))
    images = torch.randn(64, 3, 32, 32)
    exact = network.double()(images.double())
    torch.backends.cudnn.allow_tf32 = tf32
    with torch.no_grad():
        found = network.float().to(device)(images.to(device)).double().cpu()
    return float((found - exact).norm() / exact.norm())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="one run")
    given = parser.parse_args()
    rows = []
    for name, arguments in RUNS[:1] if given.quick else RUNS:
        for label, environment in (("as chosen", {}), ("without TF32", {"NVIDIA_TF32_OVERRIDE": "0"})):
            first, second = (digest(arguments, given.device, environment) for _ in range(2))
            rows.append([f"{name}, {label}", "equal" if first == second else "different", first[:16]])
            print(*rows[-1], file=sys.stderr, flush=True)
    print(report.table(["two runs", "last models", "digest"], rows) + "\n")
    device = choose(given.device)
    errors = [[str(tf32), f"{error_of_convolutions(device, tf32=tf32):.1e}"] for tf32 in (False, True)]
    print(report.table(["TF32 in convolutions", "relative error"], errors))


if __name__ == "__main__":
    main()
