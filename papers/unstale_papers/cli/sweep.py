"""`unstale sweep`: a small search over what nobody published, on a part of the training set."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unstale.cli import printing
from unstale.cli.tables import print_table
from unstale.errors import UserError
from unstale_papers.choose import chosen
from unstale_papers.cli import job_options
from unstale_papers.cli.job_options import (
    CACHE,
    STORE,
    AsJson,
    Cache,
    Cells,
    Data,
    Device,
    Name,
    Processes,
    Ray,
    ScaleClients,
    ScaleData,
    ScaleIterations,
    ScaleOption,
    ScaleRounds,
    Seeds,
    StoreFolder,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unstale_papers.jobs import Job
    from unstale_papers.search_report import SearchReport

VALIDATION = 0.1
DRAWS_MAX = 1000
FAILED = 1  # exit code after a failed run beside completed ones
OF_THE_MACHINE = frozenset({"cache", "store", "processes", "ray", "as_json", "out"})
"""Parameters that do not affect the results."""

Overs = Annotated[
    list[str],
    typer.Option(
        "--over",
        metavar="KEY=VALUES",
        help="Search over the values of a key: a list, as training.learning_rate=0.003,0.01,0.03, or with --random a "
        "range, as training.learning_rate=0.001..0.1. May be repeated; then every combination is a candidate.",
        show_default=False,
    ),
]
Random = Annotated[
    int | None,
    typer.Option(
        "--random",
        min=2,
        max=DRAWS_MAX,
        metavar="NUMBER",
        help="Draw so many candidates instead of taking every combination.",
        show_default=False,
    ),
]
RandomSeed = Annotated[int, typer.Option("--random-seed", min=0, metavar="NUMBER", help="What --random draws with.")]
MeasureName = Annotated[
    str | None,
    typer.Option(
        "--measure",
        metavar="NAME",
        help="What candidates are judged by. Default: the main metric at the end, such as final accuracy.",
        show_default=False,
    ),
]
Toward = Annotated[
    str | None,
    typer.Option(
        "--toward",
        metavar="NUMBER",
        help="The best candidate comes nearest to this, in the measure's unit, or with 'published' to the number in "
        "print of its own cell. Default: the best one.",
        show_default=False,
    ),
]
Validation = Annotated[
    float, typer.Option("--validation", metavar="SHARE", help="Share of the training set that is kept to measure on.")
]
Together = Annotated[bool, typer.Option("--together", help="One candidate for all cells, by the mean over them.")]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE.md", help="Write what was found here, as Markdown.", show_default=False),
]


def sweep(
    context: typer.Context,
    name: Name,
    over: Overs,
    cells: Cells = None,
    random: Random = None,
    random_seed: RandomSeed = 0,
    measure: MeasureName = None,
    toward: Toward = None,
    validation: Validation = VALIDATION,
    together: Together = False,
    seeds: Seeds = 1,
    scale: ScaleOption = 1.0,
    scale_rounds: ScaleRounds = None,
    scale_clients: ScaleClients = None,
    scale_data: ScaleData = None,
    scale_iterations: ScaleIterations = None,
    data: Data = None,
    cache: Cache = CACHE,
    device: Device = "auto",
    processes: Processes = None,
    ray: Ray = None,
    store: StoreFolder = STORE,
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """Search over settings that a paper does not say, on a part of the training set; the test set is not looked at.

    It can be ended at any time: the same command goes on. The exit code is 1 when a run has failed.
    """
    from unstale_papers import search_report
    from unstale_papers.comparison import Comparison
    from unstale_papers.jobs import jobs
    from unstale_papers.presets.registry import make
    from unstale_papers.scale import lost
    from unstale_papers.search import candidates, check_different, overs, search
    from unstale_papers.search_ranking import Outcome, check_reach, goal
    from unstale_papers.store import Store

    asked = overs(over)
    tried = candidates(asked, draws=random, seed=random_seed)
    ((preset, some),) = chosen([make(name)], cells)
    found = search(preset, some, tried, validation=validation)
    aim = goal(measure, toward, found)
    size = job_options.scale(
        scale, rounds=scale_rounds, clients=scale_clients, data=scale_data, iterations=scale_iterations
    ).at(some)
    _check_out(out)
    first = job_options.begin([(preset, some)], ray)
    place = job_options.place([(preset, some)], cache=cache, device=device, data=data or (), ray=ray)
    planned = jobs(found.planned, found.planned.cells, seeds=range(seeds), scale=size, place=place)
    _check_parts(planned[: len(found.trials)])
    check_different(found, planned[: len(found.trials)], size)
    check_reach(aim, found, planned)
    draws = None if random is None else (random, random_seed)
    if not as_json:
        printing.line(f"{search_report.asked(found, asked, draws)}\n{search_report.split(validation)}")
    code = job_options.compute(
        planned,
        seeds=seeds,
        size=size,
        lost=lost(some, size),
        place=place,
        processes=processes,
        first=first,
        ray=ray,
        store=store,
        as_json=as_json,
    )
    if code > FAILED:
        raise typer.Exit(code)
    with Store.open(store) as kept:
        records, failed = kept.records(planned), kept.failures(planned)
    result = search_report.SearchReport(
        outcome=Outcome(
            search=found,
            goal=aim,
            comparison=Comparison(preset=found.planned, records=records),
            failed=frozenset(failed),
            seeds=range(seeds),
        ),
        together=together,
        over=asked,
        draws=draws,
        scale=size,
        files=place.files,
        command=_command(context),
    )
    _print_result(result, as_json=as_json)
    if out is not None:
        _write(result, out)
    if code:
        raise typer.Exit(code)


def _check_out(out: Path | None) -> None:
    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        raise UserError(f"--out is {out}, expected a file in a folder that exists; name another")


def _check_parts(planned: "Sequence[Job]") -> None:
    """Raise UserError before the first job for a value that only a part can validate."""
    from unstale.config import build  # imports torch
    from unstale_papers.worker import in_place

    for job in planned:
        with in_place(job.settings, job.scenario) as settings:
            try:
                build.check(settings)
            except UserError as error:
                raise UserError(f"{job.cell}: {error}") from None


def _command(context: typer.Context) -> str:
    """The command that repeats the search, without options on place and manner of computation."""
    words = ["unstale", "sweep"]
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if parameter.name in OF_THE_MACHINE or value is None or value == parameter.default:
            continue
        for one in value if isinstance(value, list | tuple) else [value]:
            if parameter.opts[0].startswith("-"):
                words.append(parameter.opts[0])
            if one is not True:
                words.append(str(one))
    return shlex.join(words)


def _print_result(result: "SearchReport", *, as_json: bool) -> None:
    from unstale_papers import search_report

    if as_json:
        aim = result.outcome.goal
        printing.json_line(
            "found",
            {
                "preset": result.outcome.search.preset.name,
                "measure": aim.measure.name,
                "toward": aim.toward,
                "validation": result.outcome.search.validation,
                "groups": [search_report.facts(result, ranking) for ranking in result.rankings],
            },
        )
        return
    for ranking in result.rankings:
        printing.line(f"\n{search_report.summary(result, ranking)}")
        print_table(*search_report.texts(search_report.table(result, ranking)), lines=False)


def _write(result: "SearchReport", out: Path) -> None:
    from unstale.report import files
    from unstale_papers import search_report
    from unstale_papers.output import markdown

    files.write(out, markdown.text(search_report.document(result)).encode())
