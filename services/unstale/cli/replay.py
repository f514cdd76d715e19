"""`unstale replay`: recompute a recorded run, with its own policy or another one."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import cycle
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unstale.cli.options import assigned
from unstale.cli.parameters import AsJson, RunDirectory
from unstale.cli.printing import accuracy_and_loss, figure, json_line, line
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
WIDTH = 10  # of a number


def replay(
    run: RunDirectory,
    policy: Policy = None,
    assignments: Assignments = None,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Recompute a recorded run, and compare its versions. The exit code is 1 if one differs."""
    from unstale.journal.replay import Comparison, RecordedRun, Replay, changed, is_policy_key  # imports torch

    options = dict(map(assigned, assignments or ()))
    if policy is not None:
        options["policy.name"] = Given(value=policy, origin="--policy")
    machine_options = {key: given for key, given in options.items() if not is_policy_key(key)}
    has_other_policy = len(machine_options) < len(options)
    if plot is not None:  # before the run is recomputed, which may take long
        _check_plot(plot, has_other_policy=has_other_policy)
    with RecordedRun(run) as recorded:
        recorded.check()
        settings = changed(recorded.settings, machine_options)
        if has_other_policy:
            other = changed(recorded.settings, options)
            comparison = Comparison(recorded, settings, other)
            recomputed = comparison.replay
            _print_start(recomputed, as_json=as_json)
            _compare(comparison, _policies(settings, other), plot, as_json=as_json)
        else:
            recomputed = Replay(recorded, settings)
            _print_start(recomputed, as_json=as_json)
            for _ in recomputed.rounds():
                pass
    _print_end(recomputed, as_json=as_json)
    if recomputed.first_difference is not None:
        raise typer.Exit(1)


def _policies(settings: Settings, other: Settings) -> tuple[str, str]:
    """The names of both policies, which differ."""
    name, other_name = settings.policy.name, other.policy.name
    return name, f"{name}, as set" if other_name == name else other_name


def _check_plot(plot: Path, *, has_other_policy: bool) -> None:
    if not has_other_policy:
        raise UserError("--plot draws two policies, expected --policy, or --set policy.KEY=VALUE, with it")
    if plot.is_dir() or not plot.parent.is_dir():
        raise UserError(f"--plot is {plot}, expected a file in a folder that exists; choose another")


def _compare(comparison: "Comparison", names: tuple[str, str], plot: Path | None, *, as_json: bool) -> None:
    """Print, and draw, both policies. names: of the recorded one, and of the other."""
    widths = [max(WIDTH, len(name) + 2) for name in names]
    if not as_json:
        line(_about(comparison, *names))
    points = []
    for point in comparison.points():
        points.append(point)
        if as_json:
            facts = accuracy_and_loss(point.metrics) | accuracy_and_loss(point.other_metrics, "other_")
            json_line("compared", {**asdict(point), **facts})
        else:
            if len(points) == 1:
                line(f"{'':>9}" + "".join(f"{name:>{sum(widths)}}" for name in point.metrics))
                line(_row("version", len(point.metrics) * names, widths))
            numbers = [each.get(name, nan) for name in point.metrics for each in (point.metrics, point.other_metrics)]
            line(_row(str(point.version), [figure(number, ".4f") for number in numbers], widths))
    if plot is not None:
        _draw(points, names, plot)
        if not as_json:
            line(f"{plot}: written")


def _row(version: str, cells: Sequence[str], widths: list[int]) -> str:
    return f"{version:>9}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, cycle(widths), strict=False))


def _about(comparison: "Comparison", recorded: str, other: str) -> str:
    """Return a line on the meaning of the other policy's curve."""
    text = (
        f"The clients trained on the models of {recorded}: {other} aggregates the updates that they sent then, in the "
        "same rounds, and did not influence their training."
    )
    if comparison.needs_base_models:
        text += f" {other} needs the base models of updates: they are the recorded ones."
    if comparison.replay.learner.compensator is not None:
        text += f" Compensated updates belong to {recorded}: {other} aggregates the updates as they arrived."
    return text


def _print_start(recomputed: "Replay", *, as_json: bool) -> None:
    if recomputed.first > 0 and not as_json:
        line(
            f"Updates of older rounds were deleted, so this begins with version {recomputed.first}, from its "
            "checkpoint; start a run with --run.keep-updates to keep all."
        )


def _print_end(recomputed: "Replay", *, as_json: bool) -> None:
    rounds, difference = recomputed.version - recomputed.first, recomputed.first_difference
    if as_json:
        facts = {"first": recomputed.first, "last": recomputed.version, "rounds": rounds}
        parted = None if difference is None else asdict(difference)
        json_line("replayed", {**facts, "updates": recomputed.updates, "parted": parted})
        return
    if difference is not None:
        of = "digest" if difference.metric is None else difference.metric
        line(
            f"version {difference.version} differs: recorded {of} {difference.recorded}, computed "
            f"{difference.computed}; the bits depend on device, threads and the version of PyTorch"
        )
    before = "" if difference is None else " before it"
    line(f"{count(rounds, 'round')}, {count(recomputed.updates, 'update')}, all digests{before} equal")


def _draw(points: "Sequence[Point]", names: tuple[str, str], file: Path) -> None:
    """Draw each metric over versions into a PNG file. names: of both policies. Raises UserError."""
    import numpy as np

    from unstale.report import drawing, files  # imports matplotlib
    from unstale.report.statistics import single

    recorded, other = names
    labels = (f"{recorded}, recorded", f"{other}, same updates")
    title = f"The same updates with two policies\nThe clients trained on the models of {recorded}"
    versions = np.array([point.version for point in points], float)
    metrics = list(points[0].metrics) if points else ["accuracy", "loss"]
    is_classification = "accuracy" in metrics
    with files.figure(file, (5.5 * len(metrics), 4.6), title) as figure:
        for axes, name in zip(figure.subplots(1, len(metrics), sharex=True, squeeze=False)[0], metrics, strict=True):
            both = [[each.get(name, nan) for each in (point.metrics, point.other_metrics)] for point in points]
            curves = [single(versions, values) for values in np.array(both, float).reshape(-1, 2).T]
            drawing.lines(axes, labels, curves, f"test {name}{', nats' * (is_classification and name == 'loss')}")
            axes.legend()
            if name == "accuracy":
                axes.set_ylim(0, 1.02)
