"""Groups of runs: repetitions of one configuration with several seeds. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

import pandas as pd

from unstale.config.keys import KEYS, OPEN_SECTIONS, SECTIONS, open_section
from unstale.config.settings import Settings
from unstale.config.write import as_yaml
from unstale.errors import UserError, unknown_name
from unstale.journal.rundir import decides
from unstale.report.content import listed, shortened
from unstale.report.recorded import Run, printable

SEED = "seed"
GROUPS_MAX = 24
"""Number of lines that a reader can tell apart in a picture, by colour and dashes."""

LABEL_MAX = 60  # characters of an automatic label


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Runs in the order of the command line."""

    label: str  # unique
    runs: tuple[Run, ...]

    @property
    def legend(self) -> str:
        """The label, with the number of runs if there are several."""
        return self.label if len(self.runs) == 1 else f"{self.label} (n = {len(self.runs)})"

    @property
    def pooled(self) -> list[str]:
        """The keys that may change the model, besides the seed, in which the runs differ."""
        return _deciding([values(run.settings) for run in self.runs])

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


def values(settings: Settings) -> dict[str, str]:
    """Return the YAML text of every key, with a key for each setting of a policy or another part."""
    by_key: dict[str, str] = {}
    for key in KEYS:
        value = attrgetter(key)(settings)
        if key in OPEN_SECTIONS:
            by_key |= {f"{key}.{name}": as_yaml(setting) for name, setting in value.items()}
        else:
            by_key[key] = as_yaml(value)
    return by_key


def differing(runs: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the keys whose values differ, in the order of the configuration file. A missing key has no value."""
    keys = dict.fromkeys(key for values_of_run in runs for key in values_of_run)
    differ = [key for key in keys if len({values_of_run.get(key) for values_of_run in runs}) > 1]
    order = {key: number for number, key in enumerate(KEYS)}
    return sorted(differ, key=lambda key: (order.get(open_section(key) or key, 0), key))


def matching(name: str, runs: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the keys of a section, or the key itself. Raises UserError for an unknown name."""
    keys = dict.fromkeys(key for values_of_run in runs for key in values_of_run)
    matches = [key for key in keys if key == name or key.startswith(f"{name}.")]
    if not matches and name not in SECTIONS and name not in OPEN_SECTIONS:
        raise unknown_name("key", name, {*KEYS, *keys})
    return matches


def grouped(
    runs: Sequence[Run], by: Sequence[str] = (), labels: Sequence[str] = (), *, most: int = GROUPS_MAX
) -> list[Group]:
    """Group runs with the same values of the keys or sections `by`, by default of all that may change the model.

    labels: one for each group, in the order of their first runs; by default the values in which groups differ.
    most: number of groups.
    Raises UserError for an unknown key, labels that do not fit, and too many groups.
    """
    settings = [values(run.settings) for run in runs]
    named = dict.fromkeys(key for name in by for key in matching(name, settings))
    keys = list(named) if by else _deciding(settings)
    members = _members(settings, keys)
    if len(members) > most:
        raise UserError(
            f"the runs form {len(members)} groups by {listed(keys)}, expected at most {most}; choose fewer keys "
            "with --by, or fewer runs"
        )
    names = _labels([settings[indices[0]] for indices in members.values()], keys, runs)
    if labels:
        names = _checked(labels, names)
    return [
        Group(label=label, runs=tuple(runs[index] for index in indices))
        for label, indices in zip(names, members.values(), strict=True)
    ]


def _members(settings: Sequence[Mapping[str, str]], keys: Sequence[str]) -> dict[tuple[str | None, ...], list[int]]:
    """Return the indexes of the runs with the same values of the keys, by these values."""
    members: dict[tuple[str | None, ...], list[int]] = {}
    for index, values_of_run in enumerate(settings):
        members.setdefault(tuple(values_of_run.get(key) for key in keys), []).append(index)
    return members


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
    for key in [key for key in keys if key in settings]:
        value, last = settings[key], key.rpartition(".")[2]
        if last == "name":
            words.append(f"no {key.removesuffix('.name')}" if value in ("null", "none") else value)
        else:
            words.append(f"{last if last_words[last] == 1 else key} {value}")
    return shortened(printable(", ".join(words) or "not set"), LABEL_MAX)


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
