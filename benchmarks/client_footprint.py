"""Size and import time of `unstale-client`, installed with its dependencies into an empty folder."""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

CLIENT = Path(__file__).parent.parent / "client"
IMPORT = "import unstale_client; unstale_client.join"
SIZE_MB_MAX, IMPORT_S_MAX = 40, 0.3  # aims; the size is that beside NumPy


class Seconds(NamedTuple):
    cpu: float
    real: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="import 3 times instead of 20")
    times = 3 if parser.parse_args().quick else 20
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        install = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--constraint",
            str(CLIENT.parent / "constraints.txt"),
        ]
        subprocess.run([*install, "--no-cache-dir", "--target", name, str(CLIENT)], check=True)
        sizes = {path.name: _size_mb(path) for path in sorted(folder.iterdir())}
        bare, client, numpy = (_fastest(folder, program, times) for program in ("pass", IMPORT, "import numpy"))
    numpy_mb = sum(size for name, size in sizes.items() if name.startswith("numpy"))
    others_mb = sum(sizes.values()) - numpy_mb
    print("| installed | MB | aim |")
    print("|---|---|---|")
    print(f"| without NumPy | {others_mb:.1f} | under {SIZE_MB_MAX} |")
    print(f"| NumPy | {numpy_mb:.1f} | |")
    print(f"| all | {others_mb + numpy_mb:.1f} | |")
    print()
    print("| package | MB |")
    print("|---|---|")
    for package, size in sorted(sizes.items(), key=lambda item: -item[1]):
        if size >= 0.1:
            print(f"| `{package}` | {size:.1f} |")
    print()
    print(f"Fastest of {times} processes, files in the page cache, less that of an empty program. CPU time does not")
    print("count the time in which other processes have the cores:")
    print()
    print("| program | CPU time, s | real time, s | aim |")
    print("|---|---|---|---|")
    print(f"| `{IMPORT}` | {client.cpu - bare.cpu:.3f} | {client.real - bare.real:.3f} | under {IMPORT_S_MAX} |")
    print(f"| of it `import numpy` | {numpy.cpu - bare.cpu:.3f} | {numpy.real - bare.real:.3f} | |")


def _size_mb(path: Path) -> float:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files) / 1e6


def _fastest(folder: Path, program: str, times: int) -> Seconds:
    """Times of a process that runs the program with the packages of a folder, and no others."""
    command = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(folder)!r}); {program}"]
    taken = []
    for _ in range(times):
        before, began_s = os.times(), time.perf_counter()
        subprocess.run(command, check=True)
        after, real_s = os.times(), time.perf_counter() - began_s
        cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
        taken.append(Seconds(cpu_s, real_s))
    return Seconds(min(one.cpu for one in taken), min(one.real for one in taken))


if __name__ == "__main__":
    main()
