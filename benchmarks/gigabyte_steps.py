"""Processor seconds a gigabyte of each step of a large update and of a round on the server, each alone, on warm files.

Seconds of the clock too, which contain the disk and other programs.

python -m benchmarks.gigabyte_steps [--quick] [--megabytes 1000] [--folder FOLDER]
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import report
from unstale import flat
from unstale.journal import checkpoints
from unstale.journal.rounds import StoredRows
from unstale.journal.segments import Segments
from unstale.learner import row_checks
from unstale.learner.updates import pieces
from unstale.policies.weights import uniform, weighted_sum, wide_chunks
from unstale.server.malloc import limit_retained_memory
from unstale_client.partial_files import PartialFiles
from unstale_proto import payload
from unstale_proto.encodings import BFloat16
from unstale_proto.transfer import checksum

MEGABYTES, QUICK_MEGABYTES = 1000, 64
REPEATS = 3
RATE = 0.05

Step = tuple[str, str, tuple[float, float]]
"""Name, how often a round with K updates does it, seconds of processors and of the clock."""


def steps(folder: Path, numbers: int) -> Iterator[Step]:
    """Every step in order, once."""
    frames = payload.split(np.random.default_rng(0).standard_normal(numbers, dtype=np.float32).data.cast("B"))
    part = PartialFiles(folder / "parts").open("part")
    yield "chunks are written to the part", "K", _seconds(lambda: [part.append(frame) for frame in frames])
    yield "checksum of the part", "K", _seconds(lambda: checksum(part.frames()))
    (folder / "rows").mkdir()
    segments = Segments(folder / "rows")
    rows: list[Any] = []
    fill = lambda: rows.append(segments.fill(pieces(part.frames(), "delta", RATE, numbers), 4 * numbers))  # noqa: E731
    yield "decoded, divided by the rate, written as a row", "K", _seconds(fill)
    row_D = np.frombuffer(rows[0], "<f4")
    yield "norm of the row", "K", _seconds(lambda: row_checks.norms(row_D, row_checks.Layout(numbers)))
    places: list[Any] = []
    yield "checksum of the row", "K", _seconds(lambda: places.append(segments.append(rows[0])))
    yield "fdatasync of the row", "K", _seconds(segments.sync)
    part.delete()
    stored = StoredRows(places, numbers, segments.path)
    model_d = torch.zeros(numbers)
    yield "rows read and summed by columns", "K", _seconds(lambda: _sum(stored, model_d))
    yield "next version from the direction", "1", _seconds(lambda: model_d.sub_(model_d, alpha=0.5))
    yield "is the version finite", "1", _seconds(lambda: flat.is_finite(model_d))
    yield "digest of the version, SHA-256", "1", _seconds(lambda: flat.digest(model_d))
    yield "checksum of the version", "1", _seconds(lambda: checksum(payload.split(flat.to_bytes(model_d))))
    encode = lambda: BFloat16(numbers).frames([flat.to_bytes(model_d)])  # noqa: E731
    yield "encoded as bfloat16, if so", "1", _seconds(encode)
    save = lambda: checkpoints.write(folder, 1, {"model_d": model_d}, {"seq": 1})  # noqa: E731
    yield "checkpoint, with fsync", "1 in checkpoint_every", _seconds(save)
    stored.close()
    segments.close()


def _sum(rows: StoredRows, out_d: torch.Tensor) -> None:
    count, numbers = rows.shape
    for chunk in wide_chunks(count, numbers, out_d.device):
        weighted_sum(rows.columns(chunk.start, chunk.stop), uniform(count), out_d=out_d[chunk])


def _seconds(step: Callable[[], object]) -> tuple[float, float]:
    began_s, processor_s = time.perf_counter(), time.process_time()
    step()
    return time.process_time() - processor_s, time.perf_counter() - began_s


def run(numbers: int, folder: str | None) -> dict[str, tuple[str, list[tuple[float, float]]]]:
    """How often, and seconds a gigabyte, of each step, of all repeats."""
    found: dict[str, tuple[str, list[tuple[float, float]]]] = {}
    for _ in range(REPEATS):
        with tempfile.TemporaryDirectory(dir=folder) as inner:
            for name, times, (processor_s, clock_s) in steps(Path(inner), numbers):
                gigabytes = 4 * numbers / 1e9
                found.setdefault(name, (times, []))[1].append((processor_s / gigabytes, clock_s / gigabytes))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help=f"a model of {QUICK_MEGABYTES} MB")
    parser.add_argument("--megabytes", type=int, help="size of the model in float32")
    parser.add_argument("--folder", help="where the files lie; the default is the system's own")
    given = parser.parse_args()
    limit_retained_memory()  # as a server does
    megabytes = given.megabytes or (QUICK_MEGABYTES if given.quick else MEGABYTES)
    rows = [
        (name, times, *(report.median_and_spread(each) for each in zip(*seconds, strict=True)))
        for name, (times, seconds) in run(megabytes * 1_000_000 // 4, given.folder).items()
    ]
    print(f"A model of {megabytes} MB, K updates in a round.\n")
    print(report.table(("step", "times a round", "processor s a GB", "clock s a GB"), rows))


if __name__ == "__main__":
    main()
