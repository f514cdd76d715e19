"""What the evidence recommends for a condition: a policy, those that do not differ from it, and settings. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from unstale.errors import UserError, nearest
from unstale.report.content import count, listed
from unstale_papers.guide.evidence import Evidence, Result, Standing, standings
from unstale_papers.presets.guide import METHODS, TASKS

TRIGGER = "k-async"


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The ranking for a condition. condition: labels of the known axes. tasks: names of those with results. standings:
    best first.
    """

    evidence: Evidence = field(repr=False)
    condition: Mapping[str, str]
    tasks: Sequence[str]
    standings: Sequence[Standing]

    @property
    def first(self) -> Standing:
        """The recommended policy."""
        return self.standings[0]

    @property
    def alike(self) -> list[Standing]:
        """The policies that the evidence does not tell apart from the first."""
        return [one for one in self.standings[1:] if not one.is_behind]

    @property
    def absent_tasks(self) -> list[str]:
        """Titles of the guide's tasks without results."""
        return [task.title for name, task in TASKS.items() if name not in self.evidence.tasks]


def advice(evidence: Evidence, condition: Mapping[str, str | None], task: str | None = None) -> Advice:
    """The ranking for a condition, over all tasks with results or for one.

    condition: a label by axis, None where it is not known; the mean is then over all labels of the axis. Raises
    UserError for an unknown label or task, and where the evidence has no policy with a number from every run.
    """
    known = {axis: label for axis, label in condition.items() if label is not None}
    _check(evidence, known, task)
    tasks = list(evidence.tasks) if task is None else [task]
    found = standings(evidence, known, tasks)
    if not found or found[0].regret is None:
        raise UserError(
            f"there is no evidence for {named(known)}: no policy has a number from every run; leave out a condition"
        )
    return Advice(evidence=evidence, condition=known, tasks=tasks, standings=found)


def _check(evidence: Evidence, known: Mapping[str, str], task: str | None) -> None:
    if not evidence.results:
        raise UserError("there is no evidence, so nothing can be recommended; papers/README.md says how to make it")
    for axis, label in known.items():
        if label not in evidence.axes[axis]:
            raise UserError(
                f"--{axis} is {label!r}, of which there is no evidence, expected {' or '.join(evidence.axes[axis])}"
            )
    if task is None or task in evidence.tasks:
        return
    if task in TASKS:
        raise UserError(f"--task is {task!r}, which has no results yet, expected one of {', '.join(evidence.tasks)}")
    raise UserError(f"--task is {task!r}{nearest(task, list(evidence.tasks))}")


def named(condition: Mapping[str, str]) -> str:
    """`staleness high, absence half`."""
    return ", ".join(f"{axis} {label}" for axis, label in condition.items()) or "any condition"


def regret_text(one: Standing) -> str:
    """`0.4 points (95 % interval -0.1 to 0.9)`."""
    if one.regret is None:
        return f"no number in {one.lacking} of {count(one.runs, 'run')}" if one.lacking else "no number"
    interval = interval_text(one)
    return f"{one.regret.mean:.2f} points" + (f" (95 % interval {interval})" if interval else "")


def interval_text(one: Standing) -> str:
    """`-0.12 to 0.94`; empty with one seed."""
    if one.regret is None or one.regret.low is None or one.regret.high is None:
        return ""
    return f"{one.regret.low:.2f} to {one.regret.high:.2f}"


def settings_text(found: Advice, method: str) -> str:
    """The settings of a method as a part of a configuration file.

    A rate that differs between tasks or levels of staleness is a comment with the values, not a key.
    """
    policy = METHODS[method]
    values: dict[str, Any] = {"policy": {"name": policy.policy, "settings": dict(policy.settings)}}
    values |= {"trigger": {"name": TRIGGER}, "training": {}}
    comments = []
    for key, by_value in _rates(found, method).items():
        if len(by_value) == 1:
            _put(values, key, next(iter(by_value)))
        else:
            _remove(values, key)
            each = "; ".join(f"{value:g} ({listed(where)})" for value, where in by_value.items())
            comments.append(f"# {key}: {each}\n")
    plain = {section: _filled(own) for section, own in values.items() if _filled(own)}
    return yaml.safe_dump(plain, sort_keys=False) + "".join(comments)


def _rates(found: Advice, method: str) -> dict[str, dict[float, list[str]]]:
    """By key and value, the tasks and levels of staleness that it was searched for."""
    rates: dict[str, dict[float, list[str]]] = {}
    for one in found.evidence.matching(found.condition, found.tasks):
        if one.method == method:
            for key, value in one.rates.items():
                where = rates.setdefault(key, {}).setdefault(value, [])
                where += [text for text in (_where(found, one),) if text not in where]
    return rates


def _where(found: Advice, one: Result) -> str:
    title = found.evidence.tasks[one.task].title
    return title if "staleness" in found.condition else f"{title} at staleness {one.condition['staleness']}"


def _put(values: dict[str, Any], key: str, value: float) -> None:
    *path, last = key.split(".")
    for part in path:
        values = values.setdefault(part, {})
    values[last] = value


def _remove(values: dict[str, Any], key: str) -> None:
    *path, last = key.split(".")
    for part in path:
        values = values.get(part, {})
    values.pop(last, None)


def _filled(section: Mapping[str, Any]) -> dict[str, Any]:
    """Without empty mappings."""
    return {key: value for key, value in section.items() if value != {}}


def sentences(found: Advice) -> Iterator[str]:
    """The recommendation and its evidence."""
    titles = listed([found.evidence.tasks[task].title for task in found.tasks])
    yield f"For {named(found.condition)}: {found.first.method}."
    yield (
        f"Its mean regret is {regret_text(found.first)}, over {count(found.evidence.seeds, 'seed')} of "
        f"{count(len(found.tasks), 'task')}: {titles}."
    )
    if len(found.standings) > 1:
        second = found.standings[1]
        yield f"Runner-up: {second.method}, {regret_text(second)}{_told_apart(second)}."
    others = [one.method for one in found.alike if one is not found.standings[1]]
    if others:
        yield f"Not told apart from {found.first.method} either: {listed(others, most=len(others))}."
    if found.absent_tasks:
        yield f"There is no evidence yet of {listed(found.absent_tasks)}."


def _told_apart(second: Standing) -> str:
    if second.is_behind:
        if second.test is None:  # it diverged
            return ""
        tested = f"paired t-test over {second.test.n} seeds, p = {second.test.p:.2g}"
        return f", behind by more than the seeds' spread ({tested})"
    p = "" if second.test is None else f", p = {second.test.p:.2g}"
    return f"; the seeds do not tell the two apart (paired t-test{p})"
