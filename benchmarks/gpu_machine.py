"""The machine and its GPU, for the head of a report.

python -m benchmarks.gpu_machine [--device cuda]
"""

import argparse

import torch

from benchmarks import machine
from unstale.learner.device import choose


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda")
    device = choose(parser.parse_args().device)
    print(machine.description("scripts/on_gpu"))
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        print(f"- GPU: {properties.name}, {properties.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}")


if __name__ == "__main__":
    main()
