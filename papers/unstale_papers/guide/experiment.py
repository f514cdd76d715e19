"""The files of the policy guide's data: the rates that searches found, and the results of a store as evidence."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import indent
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

_HEAD = """\
# Rates of the policy guide by task, staleness and policy: the best candidates of `commands`, measured on a validation
# split. `python -m unstale_papers.guide tune` writes this file.
"""


def check_tasks(names: Sequence[str]) -> None:
    """Raise UserError for a task that the guide does not have."""
    for name in names:
        if name not in TASKS:
            raise unknown_name("task", name, TASKS)


def write_rates(found: Mapping[str, Found], file: Path) -> None:
    """Write the rates of these tasks, and of the others as they were."""
    every = {**found_rates(), **found}
    texts = [f"{task}:\n{indent(_rates_text(every[task]), '  ')}" for task in TASKS if task in every]
    file.write_text(_HEAD + "".join(texts), encoding="utf-8")


def _rates_text(found: Found) -> str:
    """YAML with a line for each command, and for each policy or rate."""
    searched = {
        level: {method: {key: list(values) for key, values in grid.items()} for method, grid in grids.items()}
        for level, grids in found.searched.items()
    }
    numbers = {"rates": found.rates, "searched": searched}
    return yaml.safe_dump({"commands": list(found.commands)}, width=10_000) + yaml.safe_dump(
        numbers, sort_keys=False, default_flow_style=None, width=10_000
    )


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
