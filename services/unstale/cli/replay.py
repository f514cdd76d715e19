"""`unstale replay`: recompute a recorded run, with its own policy or another one."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unstale.cli import printing
from unstale.cli.options import assigned
from unstale.cli.parameters import AsJson, RunDirectory
from unstale.config import Given, Settings
from unstale.errors import UserError
from unstale.report.content import count

if TYPE_CHECKING:
    from unstale.journal.replay import Comparison, Point, Replay

Policy = Annotated[str | None, typer.Option("--policy", help="Aggregate the recorded updates with this policy.")]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set a key of the policy, such as policy.settings.beta=20, or of this machine, such as device. May be "
        "repeated.",
    ),
]
Plot = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw both policies into this PNG file.")]


def replay(
    run: RunDirectory,
    policy: Policy = None,
    assignments: Assignments = None,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Recompute a recorded run, and compare its versions. The exit code is 1 if one differs."""
    from unstale.journal.replay import Comparison, RecordedRun, Replay, changed, is_of_the_policy  # imports torch

    options = dict(assigned(text) for text in assignments or ())
    if policy is not None:
        options["policy.name"] = Given(value=policy, origin="--policy")
    machine_options = {key: given for key, given in options.items() if not is_of_the_policy(key)}
    has_other_policy = len(machine_options) < len(options)
    if plot is not None:
        _check_plot(plot, has_other_policy=has_other_policy)
    with RecordedRun(run) as recorded:
        recorded.check()
        settings = changed(recorded.settings, machine_options)
        if has_other_policy:
            other = changed(recorded.settings, options)
            recomputed = _compare(Comparison(recorded, settings, other), _names(settings, other), plot, as_json=as_json)
        else:
            recomputed = Replay(recorded, settings)
            _print_start(recomputed, as_json=as_json)
            for _ in recomputed.rounds():
                pass
    _print_end(recomputed, as_json=as_json)
    if recomputed.parted is not None:
        raise typer.Exit(1)


def _check_plot(plot: Path, *, has_other_policy: bool) -> None:
    """Check the file before the run is recomputed, which may take long."""
    if not has_other_policy:
        raise UserError("--plot draws two policies, expected --policy, or --set policy.KEY=VALUE, with it")
    if plot.is_dir() or not plot.parent.is_dir():
        raise UserError(f"--plot is {plot}, expected a file in a folder that exists; choose another")


def _compare(comparison: "Comparison", names: tuple[str, str], plot: Path | None, *, as_json: bool) -> "Replay":
    """Print, and draw, both policies. names: of the recorded one, and of the other."""
    _print_start(comparison.replay, as_json=as_json)
    if not as_json:
        printing.line(_about(comparison, *names))
        printing.line(_heading(names))
    points = []
    for point in comparison.points():
        points.append(point)
        if as_json:
            printing.json_line("compared", asdict(point))
        else:
            printing.line(_row(point, names))
    if plot is not None:
        from unstale.cli.replay_plot import draw  # imports matplotlib

        draw(points, names, plot)
        if not as_json:
            printing.line(f"{plot}: written")
    return comparison.replay


def _names(settings: Settings, other: Settings) -> tuple[str, str]:
    recorded, name = settings.policy.name, other.policy.name
    return recorded, name if name != recorded else f"{name}, as set"


def _about(comparison: "Comparison", recorded: str, other: str) -> str:
    """Return a line on the meaning of the other policy's curve."""
    text = (
        f"The clients trained on the models of {recorded}: {other} aggregates the updates that they sent then, in the "
        "same rounds, and did not influence their training."
    )
    if comparison.asks_for_bases:
        text += f" {other} needs the base models of updates: they are the recorded ones."
    if comparison.replay.learner.compensator is not None:
        text += f" Compensated updates belong to {recorded}: {other} aggregates the updates as they arrived."
    return text


def _print_start(recomputed: "Replay", *, as_json: bool) -> None:
    if recomputed.first > 0 and not as_json:
        printing.line(
            f"Updates of older rounds were deleted, so this begins with version {recomputed.first}, from its "
            "checkpoint; start a run with --run.keep-updates to keep all."
        )


def _print_end(recomputed: "Replay", *, as_json: bool) -> None:
    rounds, parted = recomputed.version - recomputed.first, recomputed.parted
    if as_json:
        facts = {"first": recomputed.first, "last": recomputed.version, "rounds": rounds}
        difference = None if parted is None else asdict(parted)
        printing.json_line("replayed", {**facts, "updates": recomputed.updates, "parted": difference})
        return
    if parted is not None:
        printing.line(
            f"version {parted.version} differs: recorded digest {parted.recorded}, computed {parted.computed}; the "
            "bits depend on device, threads and the version of PyTorch"
        )
    before = "" if parted is None else " before it"
    printing.line(f"{count(rounds, 'round')}, {count(recomputed.updates, 'update')}, all digests{before} equal")


WIDTH = 10  # of a number


def _heading(names: tuple[str, str]) -> str:
    widths = [max(WIDTH, len(name) + 2) for name in names]
    above = f"{'':>9}" + "".join(f"{measure:>{sum(widths)}}" for measure in ("accuracy", "loss"))
    return f"{above}\n{'version':>9}" + 2 * "".join(
        f"{name:>{width}}" for name, width in zip(names, widths, strict=True)
    )


def _row(point: "Point", names: tuple[str, str]) -> str:
    numbers = (point.accuracy, point.other_accuracy, point.loss, point.other_loss)
    return f"{point.version:>9}" + "".join(
        f"{printing.figure(number, '.4f'):>{max(WIDTH, len(name) + 2)}}"
        for number, name in zip(numbers, 2 * names, strict=True)
    )
