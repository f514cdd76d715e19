"""Stored results of jobs whose accuracy is given."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from helpers.hand_made import ends_with
from unstale.config import Settings
from unstale_papers.jobs import File, Job, Place, jobs
from unstale_papers.preset import Cell, Claim, Number, Preset
from unstale_papers.scale import Scale
from unstale_papers.store import Result, StoredResult

A_IS_BEST = Claim(text="A is best.", measure="final accuracy", better={"method": "A"})
FULL = Scale()


def preset(
    *claims: Claim, name: str = "tiny", methods: str = "AB", printed: Mapping[str, float] = MappingProxyType({})
) -> Preset:
    """A preset of methods with different learning rates. printed: final accuracies."""
    return Preset(
        name=name,
        paper="FedHist",
        item="Table 0",
        title="Hand-made",
        cells=tuple(
            Cell(
                labels={"method": method},
                settings=Settings(
                    rounds=100,
                    clients=20,
                    data={"name": "mnist"},
                    trigger={"name": "k-async", "k": 10},
                    training={"learning_rate": number / 100},
                ),
                published={"final accuracy": Number(printed[method], "")} if method in printed else {},
            )
            for number, method in enumerate(methods, 1)
        ),
        measures=("final accuracy",),
        rows=("method",),
        columns=(),
        sources=(),
        claims=claims or (A_IS_BEST,),
    )


def place(device: str = "cpu", **files: str) -> Place:
    """files: SHA-256 by the data set that the file replaces."""
    made = {name: File(path=f"/{sha}.npz", sha256=sha, size=1, modified_ns=1) for name, sha in files.items()}
    return Place(cache="/data", device=device, files=made)


def results(
    of: Preset, accuracies: Mapping[str, Sequence[float]], scale: Scale = FULL, at: Place | None = None
) -> list[StoredResult]:
    """Results of the methods with seeds 0, 1, ..."""
    found = []
    for cell in of.cells:
        for seed, accuracy in enumerate(accuracies.get(cell.labels["method"], ())):
            (job,) = jobs(of, [cell], seeds=[seed], scale=scale, place=at or place())
            found.append(stored(job, accuracy))
    return found


def stored(job: Job, accuracy: float, name: str | None = None) -> StoredResult:
    """A job's result."""
    result = Result(record=ends_with(accuracy).to_json(), seconds=1.0, machine="one core", versions="unstale 1")
    return StoredResult(
        digest=job.digest, configuration=job.configuration, name=name or job.name, finished="2026-01-01", result=result
    )
