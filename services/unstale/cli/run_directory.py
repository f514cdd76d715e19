"""`unstale explain`, `unstale verify`, `unstale restore` and `unstale rollback`: read or change a run directory."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from unstale.cli.parameters import AsJson, RunDirectory
from unstale.cli.printing import accuracy_and_loss, figure, json_line, line, named
from unstale.errors import UserError
from unstale.metrics.named import CENTRAL

if TYPE_CHECKING:
    from unstale.journal.explain import MemberExplained, RoundExplained

Round = Annotated[int | None, typer.Argument(metavar="[ROUND]", help="The version that it made; by default the last.")]
To = Annotated[
    int | None, typer.Option("--to", metavar="VERSION", help="Version to resume from; by default the newest.")
]
Without = Annotated[
    list[int] | None,
    typer.Option("--without", metavar="CLIENT", help="Exclude a client from the run from now on. May be repeated."),
]
Readmit = Annotated[
    list[int] | None,
    typer.Option("--readmit", metavar="CLIENT", help="Admit an excluded client again. May be repeated."),
]


HEADING = (
    " client      task   base  staleness    weight   share      loss  examples      norm     bound"
    "     came at  after opening"
)


def explain(run: RunDirectory, version: Round = None, as_json: AsJson = False) -> None:
    """Show the updates of a version of a recorded run, their weights, and why its round closed."""
    from unstale.journal.explain import explain as explain_round  # imports torch
    from unstale.journal.replay import RecordedRun

    with RecordedRun(run) as recorded:
        recorded.check()
        round_ = explain_round(recorded, version)
    if as_json:
        on_test_set = round_.metrics if round_.split == CENTRAL else {}
        json_line("explained", {**asdict(round_), **accuracy_and_loss(on_test_set)})
        return
    line(f"version {round_.version} of {round_.last_version} in {run}")
    line(round_.why)
    line(
        f"open from {round_.opened_s:.3f} s to {round_.closed_s:.3f} s, applied at {round_.applied_s:.3f} s "
        f"(compensation took {round_.compensate_s:.4f} s, the step {round_.aggregate_s:.4f} s), in seconds of the run"
    )
    _print_members(round_.members)
    _print_compensation(round_)
    _print_result(round_)


def _print_members(members: Sequence["MemberExplained"]) -> None:
    """Print a row for each update of the round, and the metrics of their training."""
    if members:
        line(HEADING)
    for member in members:
        line(
            f"{member.client_id:>7}{member.task_id:>10}{member.base_version:>7}{member.staleness:>11}"
            f"{figure(member.weight, '.4f'):>10}{figure(member.share, '.1%'):>8}{figure(member.loss, '.4f'):>10}"
            f"{member.num_examples:>10}{figure(member.norm, '.4g'):>10}{figure(member.bound, '.4g'):>10}"
            f"{member.arrived_s:>10.3f} s{member.into_round_s:>+13.3f} s"
        )
    for member in members:
        if member.metrics:
            line(f"client {member.client_id} reports {named(member.metrics)}")


def _print_result(round_: "RoundExplained") -> None:
    """Print the rejected updates, and the step with its numbers."""
    rejected = ", ".join(f"{number} {reason}" for reason, number in sorted(round_.rejected.items()))
    line(f"rejected since the previous round closed: {rejected or 'nothing'}")
    if round_.overflowed:
        line("the step left the range of float32 and was skipped: the model is that of the previous version")
    line(f"next learning rate {round_.learning_rate:g}, rate factor {figure(round_.rate_factor, 'g')}")
    if round_.policy_metrics:
        numbers = (f"{name} {_whole_or_four_digits(value)}" for name, value in round_.policy_metrics.items())
        line(f"policy reports {', '.join(numbers)}")
    if round_.metrics:
        line(f"{'test' if round_.split == CENTRAL else round_.split} {named(round_.metrics)}")
    line(f"digest {round_.digest}")


def _whole_or_four_digits(value: float) -> str:
    return f"{value:.0f}" if value.is_integer() else f"{value:.4g}"


def _print_compensation(round_: "RoundExplained") -> None:
    """Print replacements of stale updates, and errors of earlier estimates."""
    for member in round_.members:
        compensation = member.compensation
        if compensation is None or compensation.method == "none":
            continue
        text = f"client {member.client_id} replaced by {compensation.method} (share {compensation.share:.2f})"
        if compensation.iterations is not None:
            disparity = figure(compensation.disparity, ".4g")
            text += f", {compensation.iterations} iterations to a disparity of {disparity}"
        line(text)
    for error in round_.errors:
        line(
            f"client {error.client_id} shows the error of {error.method} over {error.staleness} rounds: "
            f"{error.l1:.4g} by L1, {error.cosine:.4f} by cosine"
        )


def verify(run: RunDirectory, as_json: AsJson = False) -> None:
    """Read every row and every file of a run directory without a change, and list each damage with its remedy. The exit
    code is 1 if something is damaged.
    """
    from unstale.journal.verify import verify as verify_run  # imports torch

    result = verify_run(run)
    if as_json:
        json_line("verified", asdict(result))
    else:
        for message in (*result.damages, *result.notes):
            line(message)
        rows = ", ".join(f"{number:,} {table}" for table, number in result.rows.items())
        line(f"rows: {rows or 'none'}")
        files = ", ".join(
            f"{number:,} of {kind} ({result.bytes[kind]:,} bytes)" for kind, number in result.files.items()
        )
        line(f"files: {files}; {result.updates:,} updates in segments")
        line(f"{len(result.damages):,} damages" if result.damages else "no damage")
    if result.damages:
        raise typer.Exit(1)


def restore(run: RunDirectory, as_json: AsJson = False) -> None:
    """Check a run directory that comes from a backup, and give the run another id, so that clients discard updates of
    its lost end.
    """
    from unstale.journal.restore import restore as restore_run  # imports torch

    result = restore_run(run)
    if as_json:
        json_line("restored", asdict(result))
        return
    for message in result.damaged_checkpoints:
        line(f"{message}; the run resumes without this checkpoint")
    updates = result.updates
    line(
        f"version {result.version}: {updates.received} updates, {updates.aggregated} aggregated, {updates.pending} "
        f"waiting, {updates.rejected} rejected"
    )
    if result.lost_events:
        line(f"{result.lost_events} later events are lost")
    for path in result.set_aside:
        line(f"{path}: set aside, run.db does not name it")
    line(f"run id {result.run_id}, before {result.former_run_id or 'none'}; start `unstale server` on {run}")


def rollback(
    run: RunDirectory, to: To = None, without: Without = None, readmit: Readmit = None, as_json: AsJson = False
) -> None:
    """Reset a run to an earlier version, so that the next server resumes from there, with or without a client."""
    if to is None and not without and not readmit:
        raise UserError("nothing to do, expected --to VERSION, --without CLIENT or --readmit CLIENT")
    from unstale.journal.rollback import roll_back  # imports torch

    result = roll_back(run, to, without=without or (), readmit=readmit or ())
    if as_json:
        json_line("rolled-back", asdict(result))
        return
    line(
        f"version {result.version}, before {result.former_version}: {result.updates} accepted updates are not used any "
        "more"
    )
    if result.excluded:
        line(f"excluded clients: {', '.join(map(str, result.excluded))}")
    line(f"{result.copy}: a copy of the former run; to undo, start `unstale server` on a copy of that directory")
    line(f"run id {result.run_id}, before {result.former_run_id or 'none'}; start `unstale server` on {run}")
