"""`unstale explain`: which updates made a version, and why its round closed then."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unstale.cli import printing

if TYPE_CHECKING:
    from unstale.journal.explain import RoundExplained

Run = Annotated[Path, typer.Argument(metavar="RUN", help="Directory of the run.", show_default=False)]
Round = Annotated[
    int | None,
    typer.Argument(metavar="[ROUND]", help="The version that it made; the last, when none is named."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON line, for programs.")]

HEADING = (
    " client      task   base  staleness    weight   share      loss  examples      norm     bound"
    "     came at  after opening"
)


def explain(run: Run, version: Round = None, as_json: AsJson = False) -> None:
    """Say which updates made a version of a recorded run, with what weight, and why its round closed when it did."""
    from unstale.journal.explain import explain as explained  # imports torch
    from unstale.journal.replay import RecordedRun

    with RecordedRun(run) as recorded:
        recorded.check()
        found = explained(recorded, version)
    if as_json:
        printing.json_line("explained", asdict(found))
    else:
        _tell(found, run)


def _optional(norm: float | None) -> str:
    return "-" if norm is None else f"{norm:.4g}"


def _tell_compensation(found: "RoundExplained") -> None:
    """What stale updates were replaced by, and how right that was of others before."""
    for member in found.members:
        made = member.compensation
        if made is None or made.method == "none":
            continue
        inverted = (
            ""
            if made.iterations is None
            else (
                f", {made.iterations} iterations to a disparity of {printing.figure(made.disparity, '.4g')}"
            )
        )
        printing.line(
            f"client {member.client_id} replaced by {made.method} (share {made.share:.2f}){inverted}"
        )
    for error in found.errors:
        printing.line(
            f"client {error.client_id} shows the error of {error.method} over {error.staleness} rounds: "
            f"{error.l1:.4g} by L1, {error.cosine:.4f} by cosine"
        )


def _tell(found: "RoundExplained", run: Path) -> None:
    printing.line(f"version {found.version} of {found.last_version} in {run}")
    printing.line(found.why)
    printing.line(
        f"open from {found.opened_s:.3f} s to {found.closed_s:.3f} s, applied at {found.applied_s:.3f} s "
        f"(compensating took {found.compensate_s:.4f} s, the step {found.aggregate_s:.4f} s), in seconds of the run"
    )
    if found.members:
        printing.line(HEADING)
    for member in found.members:
        share = "-" if member.share is None else f"{member.share:.1%}"
        printing.line(
            f"{member.client_id:>7}{member.task_id:>10}{member.base_version:>7}{member.staleness:>11}"
            f"{printing.figure(member.weight, '.4f'):>10}{share:>8}{printing.figure(member.loss, '.4f'):>10}"
            f"{member.num_examples:>10}{_optional(member.norm):>10}{_optional(member.bound):>10}"
            f"{member.arrived_s:>10.3f} s{member.into_round_s:>+13.3f} s"
        )
    _tell_compensation(found)
    rejected = ", ".join(f"{count} {reason}" for reason, count in sorted(found.rejected.items()))
    printing.line(f"rejected since the round before was closed: {rejected or 'nothing'}")
    if found.overflowed:
        printing.line(
            "the step left the range of float32 and was not taken: the model is that of the version before"
        )
    printing.line(
        f"next learning rate {found.learning_rate:g}, rate factor {printing.figure(found.rate_factor, 'g')}"
    )
    if found.accuracy is not None:
        printing.line(
            f"test accuracy {printing.figure(found.accuracy, '.4f')}, loss {printing.figure(found.loss, '.4f')}"
        )
    printing.line(f"digest {found.digest}")
