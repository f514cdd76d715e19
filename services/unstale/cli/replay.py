"""`unstale replay`: a recorded run computed again, under its own policy or under another one."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unstale.cli import printing
from unstale.cli.options import assigned
from unstale.config import Given, Settings
from unstale.errors import UserError

if TYPE_CHECKING:
    from unstale.journal.replay import Comparison, Point, Replay

Run = Annotated[Path, typer.Argument(metavar="RUN", help="Directory of the run.", show_default=False)]
Policy = Annotated[
    str | None,
    typer.Option("--policy", help="Fold the recorded updates under this policy.", show_default=False),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set a key of the policy, such as policy.settings.beta=20, or of this machine, such as device. May be "
        "repeated.",
        show_default=False,
    ),
]
Plot = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FILE", help="Draw both policies into this PNG file.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON lines, for programs.")]


def replay(
    run: Run,
    policy: Policy = None,
    assignments: Assignments = None,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Compute a recorded run again, and compare its versions. The exit code is 1 where they part."""
    from unstale.journal.replay import (  # imports torch
        Comparison,
        RecordedRun,
        Replay,
        changed,
        is_of_the_policy,
    )

    options = dict(assigned(text) for text in assignments or ())
    if policy is not None:
        options["policy.name"] = Given(value=policy, origin="--policy")
    of_this_machine = {key: given for key, given in options.items() if not is_of_the_policy(key)}
    if plot is not None:
        _check_plot(plot, has_other_policy=len(of_this_machine) < len(options))
    with RecordedRun(run) as recorded:
        recorded.check()
        settings = changed(recorded.settings, of_this_machine)
        if len(of_this_machine) < len(options):
            other = changed(recorded.settings, options)
            again = _compare(Comparison(recorded, settings, other), _names(settings, other), plot, as_json)
        else:
            again = Replay(recorded, settings)
            _say_where_it_begins(again, as_json=as_json)
            for _ in again.rounds():
                pass
    _say_how_it_ended(again, as_json=as_json)
    if again.parted is not None:
        raise typer.Exit(1)


def _compare(comparison: "Comparison", names: tuple[str, str], plot: Path | None, as_json: bool) -> "Replay":
    """Print, and draw, both policies. names: of the recorded one, and of the other."""
    _say_where_it_begins(comparison.replay, as_json=as_json)
    if not as_json:
        printing.line(
            _about(
                *names,
                asks_for_bases=comparison.asks_for_bases,
                was_compensated=comparison.replay.learner.compensator is not None,
            )
        )
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

        try:
            draw(points, names, plot)
        except OSError as error:
            raise UserError(f"cannot write {plot}: {(error.strerror or str(error)).lower()}") from None
        if not as_json:
            printing.line(f"{plot}: written")
    return comparison.replay


def _names(settings: Settings, other: Settings) -> tuple[str, str]:
    was, now = settings.policy.name, other.policy.name
    return was, now if now != was else f"{now}, as set"


def _about(was: str, now: str, *, asks_for_bases: bool, was_compensated: bool) -> str:
    """What the curve of the other policy is, and what it is not."""
    bases = (
        f" {now} asks for the models that updates were computed from: they are the recorded ones."
        if asks_for_bases
        else ""
    )
    uncompensated = (
        f" What was estimated in place of stale updates belongs to {was}: {now} folds them as they came."
        if was_compensated
        else ""
    )
    return (
        f"The clients trained on the models of {was}: {now} folds what they sent then, in the same rounds, and did not "
        f"decide what they trained on.{bases}{uncompensated}"
    )


def _check_plot(plot: Path, *, has_other_policy: bool) -> None:
    """Before the run is computed, which may take long."""
    if not has_other_policy:
        raise UserError("--plot draws two policies, expected --policy, or --set policy.KEY=VALUE, with it")
    if plot.is_dir() or not plot.parent.is_dir():
        raise UserError(f"--plot is {plot}, expected a file in a folder that exists")


def _say_where_it_begins(again: "Replay", *, as_json: bool) -> None:
    if again.first > 0 and not as_json:
        printing.line(
            f"Updates of older rounds were let go, so this begins with version {again.first}, as its checkpoint has "
            "it; --run.keep-updates, when a run begins, keeps all."
        )


def _say_how_it_ended(again: "Replay", *, as_json: bool) -> None:
    rounds, parted = again.version - again.first, again.parted
    if as_json:
        facts = {"first": again.first, "last": again.version, "rounds": rounds, "updates": again.updates}
        printing.json_line("replayed", {**facts, "parted": None if parted is None else asdict(parted)})
        return
    if parted is not None:
        printing.line(
            f"version {parted.version} is not the one that was made: recorded digest {parted.recorded}, computed "
            f"{parted.computed}; its bits depend on device, threads and the version of PyTorch"
        )
    before = "" if parted is None else " before it"
    printing.line(f"{_count(rounds, 'round')}, {_count(again.updates, 'update')}, all digests{before} equal")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


WIDTH = 10  # of a figure


def _heading(names: tuple[str, str]) -> str:
    widths = [max(WIDTH, len(name) + 2) for name in names]
    above = f"{'':>9}" + "".join(f"{what:>{sum(widths)}}" for what in ("accuracy", "loss"))
    return f"{above}\n{'version':>9}" + 2 * "".join(
        f"{name:>{width}}" for name, width in zip(names, widths, strict=True)
    )


def _row(point: "Point", names: tuple[str, str]) -> str:
    figures = (point.accuracy, point.other_accuracy, point.loss, point.other_loss)
    return f"{point.version:>9}" + "".join(
        f"{printing.figure(figure, '.4f'):>{max(WIDTH, len(name) + 2)}}"
        for figure, name in zip(figures, 2 * names, strict=True)
    )
