"""The two steps that make the policy guide's data: searches of rates, and the results of a store as evidence."""

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from unstale.errors import UserError, unknown_name
from unstale_papers.comparison import Comparison
from unstale_papers.guide.evidence import Evidence, Result, TaskMeasure
from unstale_papers.jobs import Place, jobs
from unstale_papers.preset import Cell, Preset
from unstale_papers.presets.guide import ALPHA, METHOD, METHODS, MULTIPLIER, RATE, TASKS, Found, found_rates, preset
from unstale_papers.scale import Scale
from unstale_papers.store import Store
from unstale_papers.table_metrics import measure

VALIDATION = 0.2
SEARCHED = {"heterogeneity": "non-iid", "absence": "none"}
"""The conditions of a search. The rates that it finds hold at all others of the same staleness."""

_HEAD = """\
# Rates of the policy guide by task, staleness and policy: the best candidates of `commands`, measured on a validation
# split. `python -m unstale_papers.guide tune` writes this file.
"""


def check_tasks(names: Sequence[str]) -> None:
    """Raise UserError for a task that the guide does not have."""
    for name in names:
        if name not in TASKS:
            raise unknown_name("task", name, TASKS)


def searches(task: str) -> list[list[str]]:
    """The arguments of `unstale` that search the rates of a task: one search for each key of the server's step."""
    by_server: dict[tuple[str, tuple[float, ...]], list[str]] = {}
    for name, method in METHODS.items():
        by_server.setdefault(method.server, []).append(name)
    shared = " ".join(f"{axis}={label}" for axis, label in SEARCHED.items())
    return [
        [
            *("sweep", f"guide-{task}", "--cells", f"{shared} {METHOD}={','.join(names)}"),
            *("--over", f"{RATE}={_listed(TASKS[task].rates)}", "--over", f"{key}={_listed(values)}"),
            *("--validation", str(VALIDATION)),
        ]
        for (key, values), names in by_server.items()
    ]


def _listed(values: Sequence[float]) -> str:
    return ",".join(map(str, values))


def tune(task: str, options: Sequence[str]) -> Found:
    """Run the searches of a task in processes of their own. options: further ones, of the machine.

    Raises UserError for a search that fails, and where no candidate of a policy has a number.
    """
    rates: dict[str, dict[str, dict[str, float]]] = {}
    commands = searches(task)
    for words in commands:
        for cell, best in _searched([*words, *options, "--json"]):
            rates.setdefault(cell.labels["staleness"], {})[cell.labels[METHOD]] = best
    return Found(commands=tuple(shlex.join(["unstale", *words]) for words in commands), rates=rates)


def _searched(words: Sequence[str]) -> Iterator[tuple[Cell, dict[str, float]]]:
    """Yield each cell of a search with its best candidate."""
    program = [sys.executable, "-m", "unstale", *words]
    done = subprocess.run(program, stdout=subprocess.PIPE, text=True, check=False)  # noqa: S603  (a module of ours)
    if done.returncode:
        raise UserError(f"the search ended with exit code {done.returncode}: {shlex.join(['unstale', *words])}")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    (found,) = (event for event in events if event["event"] == "found")
    cells = {cell.name: cell for cell in preset(words[1].removeprefix("guide-")).cells}
    for group in found["groups"]:
        (name,) = group["cells"]
        if not group["best"]:
            raise UserError(f"{group['says']} Name other values in unstale_papers/presets/guide.py")
        yield cells[name], group["best"][0]


def write_rates(found: Mapping[str, Found], file: Path) -> None:
    """Write the rates of these tasks, and of the others as they were."""
    every = {**found_rates(), **found}
    plain = {
        task: {"commands": list(every[task].commands), "rates": every[task].rates} for task in TASKS if task in every
    }
    file.write_text(_HEAD + yaml.safe_dump(plain, sort_keys=False, width=10_000), encoding="utf-8")


def collected(tasks: Sequence[str], store: Path, place: Place, seeds: int) -> Evidence:
    """The evidence of the runs in a store.

    Raises:
        UserError: There is no store, a task has no searched rates, or a run is missing.
    """
    for task in tasks:
        if task not in found_rates():
            raise UserError(f"task {task!r} has no searched rates; first: python -m unstale_papers.guide tune {task}")
    opened = Store.look(store)
    if opened is None:
        raise UserError(f"there is no store in {store}, expected one that `unstale reproduce run` made")
    with opened:
        results = tuple(result for task in tasks for result in _results(task, opened, place, seeds))
    return Evidence(tasks={task: _measure(task) for task in tasks}, results=results)


def merged(before: Evidence, new: Evidence) -> Evidence:
    """The new results, and those of tasks that only the former evidence has, in the order of the guide's tasks.

    Raises UserError where they differ in conditions, methods or the number of seeds.
    """
    tasks = {**before.tasks, **new.tasks}
    names = [name for name in TASKS if name in tasks]
    source = {name: new if name in new.tasks else before for name in names}
    try:
        return Evidence(
            tasks={name: tasks[name] for name in names},
            results=tuple(one for name in names for one in source[name].matching({}, [name])),
        )
    except ValidationError as error:
        why = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
        raise UserError(f"{why}; write all tasks with results together: {' '.join(names)}") from None


def _results(task: str, store: Store, place: Place, seeds: int) -> Iterator[Result]:
    own = preset(task)
    planned = jobs(own, own.cells, seeds=range(seeds), scale=Scale(), place=place)
    records = store.records(planned)
    if missing := len(planned) - len(records):
        raise UserError(
            f"{missing} of {len(planned)} runs of task {task!r} are missing; first: unstale reproduce run "
            f"{own.name} --seeds {seeds}"
        )
    comparison = Comparison(preset=own, records=records)
    for cell in own.cells:
        yield _result(task, own, cell, comparison)


def _result(task: str, own: Preset, cell: Cell, comparison: Comparison) -> Result:
    values = comparison.entry(cell, measure(own.measures[0])).values
    return Result(
        task=task,
        condition={axis: label for axis, label in cell.labels.items() if axis != METHOD},
        method=cell.labels[METHOD],
        values=tuple(None if value is None else round(value, 6) for _, value in sorted(values.items())),
        rates=rates_of(cell),
    )


def rates_of(cell: Cell) -> dict[str, float]:
    """The values of the searched keys."""
    settings = cell.settings
    found = {RATE: settings.training.learning_rate}
    key, _ = METHODS[cell.labels[METHOD]].server
    policy: Mapping[str, Any] = settings.policy.settings
    return found | ({ALPHA: policy["alpha"]} if key == ALPHA else {MULTIPLIER: settings.policy.server_multiplier})


def _measure(task: str) -> TaskMeasure:
    of = measure(TASKS[task].measure)
    return TaskMeasure(title=TASKS[task].title, measure=of.name, better=of.better, is_share=of.unit == "%")


def write_evidence(evidence: Evidence, file: Path) -> None:
    """Write it as JSON, a result on each line."""
    tasks = json.dumps({name: one.model_dump() for name, one in evidence.tasks.items()})
    lines = ",\n".join(json.dumps(one.model_dump(mode="json")) for one in evidence.results)
    file.write_text(f'{{"tasks": {tasks},\n"results": [\n{lines}\n]}}\n', encoding="utf-8")
