"""Options and the reported engine run that the commands share which compute cells of presets."""

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from ctypes import CDLL
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from unstale.cli import printing
from unstale.errors import UserError, nearest
from unstale_papers import gpu
from unstale_papers.choose import data_sets
from unstale_papers.cli.reproduce_progress import Printer

if TYPE_CHECKING:
    from unstale.workers.pool import Pool
    from unstale_papers.jobs import File, Job, Place
    from unstale_papers.preset import Cell, Preset
    from unstale_papers.scale import Scale

STORE = Path("unstale-reproduction")
CACHE = "~/.cache/unstale"

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Name = Annotated[str, typer.Argument(metavar="PRESET", help="A name that `unstale reproduce list` prints.")]
Cells = Annotated[
    str | None,
    typer.Option(
        "--cells",
        metavar="TEXT",
        help="Only these cells, such as 'method=FedHist,FedAvg beta=0.3'; `unstale reproduce show` has the labels.",
        show_default=False,
    ),
]
Seeds = Annotated[int, typer.Option("--seeds", min=1, max=1000, metavar="NUMBER", help="Seeds of each cell.")]
ScaleOption = Annotated[
    float,
    typer.Option(
        "--scale",
        metavar="NUMBER",
        help="Make it smaller: rounds and iterations by this, clients and data by its root.",
    ),
]
ScaleRounds = Annotated[
    float | None,
    typer.Option("--scale-rounds", metavar="NUMBER", help="Make rounds fewer by this.", show_default=False),
]
ScaleClients = Annotated[
    float | None,
    typer.Option("--scale-clients", metavar="NUMBER", help="Make clients fewer by this.", show_default=False),
]
ScaleData = Annotated[
    float | None,
    typer.Option("--scale-data", metavar="NUMBER", help="Make examples fewer by this.", show_default=False),
]
ScaleIterations = Annotated[
    float | None,
    typer.Option(
        "--scale-iterations", metavar="NUMBER", help="Make an inversion's iterations fewer by this.", show_default=False
    ),
]
Data = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        metavar="NAME=FILE",
        help="Take this .npz file in place of a data set, such as cifar10=mine.npz; every output says so. Whose an "
        "example is stands in group_train and group_test, where clients are people. May be repeated.",
        show_default=False,
    ),
]
Cache = Annotated[str, typer.Option("--cache", metavar="FOLDER", help="The folder of downloaded data.")]
Device = Annotated[str, typer.Option("--device", help="Where to compute: auto, cpu, cuda, cuda:0, ... or mps.")]
Backend = Annotated[
    Literal["auto", "loop", "vmap"],
    typer.Option(
        "--backend",
        help="Computation of simulated clients: loop (one by one) or vmap (in batches, with other bits); auto is vmap "
        "with a GPU, where a cell can use it, else loop.",
    ),
]
Processes = Annotated[
    int | None,
    typer.Option(
        "--processes",
        min=1,
        max=1024,
        metavar="NUMBER",
        help="Jobs at a time, each in a process of its own. Default: one a core; with a GPU up to four, with equal "
        "shares of its memory of at least 7 GiB.",
        show_default=False,
    ),
]
Ray = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="Have the machines of a Ray cluster do the jobs: auto, local or HOST:PORT.",
        show_default=False,
    ),
]
StoreFolder = Annotated[
    Path, typer.Option("--store", metavar="FOLDER", help="Where results are kept, and found again.")
]


def scale(
    every: float, *, rounds: float | None, clients: float | None, data: float | None, iterations: float | None
) -> "Scale":
    """The scale of the five options. Raises UserError."""
    from unstale_papers.scale import Scale

    own = {"rounds": rounds, "clients": clients, "data": data, "iterations": iterations}
    return replace(Scale.of(every), **{name: value for name, value in own.items() if value is not None})


def begin(wanted: "Sequence[tuple[Preset, tuple[Cell, ...]]]", ray: str | None) -> "Pool | None":
    """Start the first process that computes these cells here, for `compute`: it imports PyTorch while this process
    reads files and plans. None where it does not start, which `compute` reports, and with Ray.
    """
    from unstale_papers import pools
    from unstale_papers.runners import MEASUREMENTS

    if ray is not None:
        return None
    measured = {cell.measurement for _, cells in wanted for cell in cells}
    with suppress(OSError):
        return pools.local(*(module for name, module in MEASUREMENTS.items() if name in measured))
    return None


def place(
    wanted: "Sequence[tuple[Preset, tuple[Cell, ...]]]",
    *,
    cache: str,
    device: str,
    data: Sequence[str],
    ray: str | None,
    backend: str = "auto",
) -> "Place":
    """The device, data and files of these cells. data: of `--data`. Raises UserError, also for data that this machine
    lacks if it computes them.
    """
    from unstale_papers.jobs import Place

    found = Place(cache=cache, device=_device(device, ray), backend=backend, files=_files(data, wanted))
    if ray is None:
        _check_data(wanted, found)
    return found


def _device(name: str, ray: str | None) -> str:
    """The device to use, never auto, because it affects bits. Raises UserError for a missing device."""
    if ray is None:
        if name == "cpu" or (name == "auto" and not _has_driver()):
            return "cpu"
        from unstale.learner.device import choose  # imports torch

        return str(choose(name))
    from unstale.config import Given, load

    load(options={"compensator.ray": Given(value=ray, origin="--ray")})
    if name not in ("auto", "cpu", "cuda"):
        raise UserError(f"--device is {name!r} with --ray, expected cpu or cuda: Ray says which GPU a job has")
    return "cpu" if name == "auto" else name


def _has_driver() -> bool:
    """Whether a GPU driver exists; without one, PyTorch need not be imported to check."""
    if sys.platform != "linux" or Path("/dev/kfd").exists():  # AMD's
        return True
    try:
        CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processes(device: str, ray: str | None) -> int:
    """Jobs at a time on a device, where the user says nothing."""
    if device == "cpu":
        return _cores()
    if not device.startswith("cuda") or ray is not None:
        return 1
    import torch

    return gpu.processes(torch.cuda.get_device_properties(device).total_memory, _cores())


def _files(texts: Sequence[str], wanted: "Sequence[tuple[Preset, tuple[Cell, ...]]]") -> "Mapping[str, File]":
    """The files of --data by data set: any data set of the presets, also of cells that --cells excludes."""
    from unstale_papers.worker import file_of

    used = data_sets(cell for preset, _ in wanted for cell in preset.cells)
    if texts and not used:
        raise UserError(f"--data is {texts[0]!r}, but these presets are measured on no data set; leave it out")
    files = {}
    for text in texts:
        name, sign, file = text.partition("=")
        if not sign or not file:
            raise UserError(f"--data is {text!r}, expected NAME=FILE.npz, such as {used[0]}=mine.npz")
        if name not in used:
            raise UserError(f"--data has {name!r}, which none of these presets is measured on{nearest(name, used)}")
        files[name] = file_of(str(Path(file).expanduser().absolute()))
    return files


def _check_data(wanted: "Sequence[tuple[Preset, tuple[Cell, ...]]]", place: "Place") -> None:
    """Raise UserError for a missing data set, which would fail every job."""
    named = [(preset, name) for preset, cells in wanted for name in data_sets(cells) if name not in place.files]
    if not named:
        return
    from unstale.training.datasets import DATASETS, Source, is_there  # imports torch

    for preset, name in named:
        if name in DATASETS and is_there(name, place.cache) is False:
            missing = Source(name=name, cache=place.cache)
            raise UserError(
                f"{preset.name} is measured on {name!r}, which is not in {missing.location}; get it with: "
                f"{missing.command}, or put a file in its place with --data {name}=FILE.npz"
            )


def compute(
    planned: "Sequence[Job]",
    *,
    seeds: int,
    size: "Scale",
    lost: Sequence[str],
    place: "Place",
    processes: int | None,
    first: "Pool | None",
    ray: str | None,
    store: Path,
    as_json: bool,
) -> int:
    """Compute the open jobs and report progress. seeds: per cell. lost: sentences on properties that the scale loses.
    first: of `begin`. processes, ray, store: of the options. Return the exit code: 1 after a failed job, 128 plus its
    number after a signal. Raises UserError.
    """
    from unstale_papers.engine import Engine
    from unstale_papers.store import Store

    on_gpu = place.device.startswith("cuda")
    at_a_time = processes or _processes(place.device, ray)
    printer = Printer(as_json=as_json)
    stopped_by: list[int] = []
    with Store.open(store) as kept:
        engine = Engine(
            kept,
            printer,
            processes=at_a_time,
            gpu_share=gpu.share(at_a_time) if on_gpu and ray is None else 1.0,
            first=first,
            ray=ray,
            gpus=float(on_gpu),
        )

        def stop(number: int) -> None:
            stopped_by.append(number)
            engine.stop()

        printing.stop_on_signals(stop)
        _announce(planned, seeds, size, lost, place, ray or at_a_time, as_json=as_json)
        counts = engine.run(planned)
    printer.ended(counts, store=store, was_stopped=bool(stopped_by))
    return 128 + stopped_by[0] if stopped_by else int(bool(counts.failed))


def _announce(
    planned: "Sequence[Job]",
    seeds: int,
    size: "Scale",
    lost: Sequence[str],
    place: "Place",
    by: int | str,
    *,
    as_json: bool,
) -> None:
    """Print the planned computation and its differences from the published one."""
    files = {name: {"path": file.path, "sha256": file.sha256} for name, file in place.files.items()}
    presets = list(dict.fromkeys(job.preset for job in planned))
    count = len({job.digest for job in planned})
    if as_json:
        facts = {
            "presets": presets,
            "jobs": count,
            "seeds": seeds,
            "scale": str(size),
            "lost": list(lost),
            "data": files,
        }
        printing.json_line("planned", {**facts, "device": place.device, "by": by})
        return
    cells = len(planned) // seeds
    who = f"the Ray cluster {by}" if isinstance(by, str) else f"{by} process{'es' * (by > 1)}"
    printing.line(
        f"{', '.join(presets)}: {cells} cell{'s' * (cells > 1)} with {seeds} seed{'s' * (seeds > 1)} are {count} "
        f"job{'s' * (count > 1)}, {size}, on {place.device} by {who}"
    )
    for name, file in files.items():
        printing.line(f"in place of {name}: {file['path']} (SHA-256 {file['sha256'][:12]}...)")
    for sentence in lost:
        printing.line(sentence)
