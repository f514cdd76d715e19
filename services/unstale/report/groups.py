"""Groups of runs: repetitions of one configuration with several seeds. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from unstale.errors import UserError
from unstale.journal.rundir import decides
from unstale.report.content import listed
from unstale.report.recorded import Run, printable
from unstale.report.settings import SEED, differing, matching, values

GROUPS_MAX = 24
"""Number of lines that a reader can tell apart in a picture, by colour and dashes."""

LABEL_MAX = 60  # characters of an automatic label


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Runs in the order of the command line."""

    label: str  # unique
    runs: tuple[Run, ...]
    pooled: tuple[str, ...] = ()  # keys besides the seed in which the runs differ

    @property
    def legend(self) -> str:
        """The label, with the number of runs if there are several."""
        return self.label if len(self.runs) == 1 else f"{self.label} (n = {len(self.runs)})"

    @property
    def evaluated(self) -> list[Run]:
        """The runs with a version that was measured on the test set."""
        return [run for run in self.runs if run.is_evaluated]


def keys(groups: Sequence[Group]) -> list[str]:
    """Return the legend of a picture; nothing for a single run."""
    return [group.legend for group in groups] if sum(len(group.runs) for group in groups) > 1 else []


def frame(groups: Sequence[Group], name: str) -> pd.DataFrame:
    """Return a data frame of all runs, with categories `group` and `run` for their labels and names, in order."""
    together = pd.concat(
        [getattr(run, name).assign(group=group.label, run=run.name) for group in groups for run in group.runs],
        ignore_index=True,
    )
    return together.astype({column: pd.CategoricalDtype(together[column].unique()) for column in ("group", "run")})


def grouped(runs: Sequence[Run], by: Sequence[str] = (), labels: Sequence[str] = ()) -> list[Group]:
    """Group runs with the same values of the keys or sections `by`, by default of all that may change the model.

    labels: one for each group, in the order of their first runs; by default the values in which groups differ.
    Raises UserError for an unknown key, labels that do not fit, and too many groups.
    """
    settings = [values(run.settings) for run in runs]
    named = dict.fromkeys(key for name in by for key in matching(name, settings))
    keys = list(named) if by else _deciding(settings)
    members: dict[tuple[str | None, ...], list[int]] = {}
    for index, values_of_run in enumerate(settings):
        members.setdefault(tuple(values_of_run.get(key) for key in keys), []).append(index)
    if len(members) > GROUPS_MAX:
        raise UserError(
            f"the runs form {len(members)} groups by {listed(keys)}, expected at most {GROUPS_MAX}; choose fewer keys "
            "with --by, or fewer runs"
        )
    names = _labels([settings[indices[0]] for indices in members.values()], keys, runs)
    if labels:
        names = _checked(labels, names)

    def group(label: str, indices: Sequence[int]) -> Group:
        pooled = _deciding([settings[index] for index in indices])
        return Group(label=label, runs=tuple(runs[index] for index in indices), pooled=tuple(pooled))

    return list(map(group, names, members.values()))


def _deciding(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the differing keys that may change the model, except the seed."""
    return [key for key in differing(settings) if decides(key) and key != SEED]


def _labels(settings: Sequence[Mapping[str, str]], keys: Sequence[str], runs: Sequence[Run]) -> list[str]:
    """Return a short label for each group, from the settings of its first run."""
    if len(settings) == 1:
        return [printable(settings[0]["policy.name"] if len(runs) > 1 else runs[0].name)]
    names = differing([{key: group[key] for key in keys if key in group} for group in settings])
    labels = [_label(group, names) for group in settings]
    times = Counter(labels)
    return [f"{label} ({number})" if times[label] > 1 else label for number, label in enumerate(labels, start=1)]


def _label(settings: Mapping[str, str], keys: Sequence[str]) -> str:
    """Return a label such as `fedbuff, no compensator, k 5`."""
    last_words = Counter(key.rpartition(".")[2] for key in keys)
    words = []
    for key in keys:
        value, last = settings.get(key), key.rpartition(".")[2]
        if value is None:
            continue
        if last == "name":
            words.append(f"no {key.removesuffix('.name')}" if value in ("null", "none") else value)
        else:
            words.append(f"{last if last_words[last] == 1 else key} {value}")
    label = printable(", ".join(words) or "not set")
    return label if len(label) <= LABEL_MAX else f"{label[: LABEL_MAX - 1]}…"


def _checked(labels: Sequence[str], automatic: Sequence[str]) -> list[str]:
    if len(labels) != len(automatic):
        raise UserError(
            f"--label is given {len(labels)} times, expected one for each of the {len(automatic)} groups, in this "
            f"order: {listed(automatic, most=GROUPS_MAX)}"
        )
    checked = [printable(label).strip() for label in labels]
    for index, label in enumerate(checked):
        if not label or label in checked[:index]:
            raise UserError(f"--label is {label!r}, expected a different name for each group; choose another")
    return checked
