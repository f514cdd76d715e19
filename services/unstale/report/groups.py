"""Runs that belong together: repetitions of one configuration under several seeds. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from unstale.errors import UserError
from unstale.journal.rundir import decides
from unstale.report import settings as told
from unstale.report.content import listed
from unstale.report.recorded import Run, printable

GROUPS_MAX = 24
"""As many as can be told apart in a picture, by colour and line."""

LABEL_MAX = 60  # characters of one that nobody gave


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Runs, in the order in which they were named. label: no other group has it. pooled: keys in which its runs differ
    besides the seed, because nobody asked to tell them apart by those."""

    label: str
    runs: tuple[Run, ...]
    pooled: tuple[str, ...] = ()

    @property
    def legend(self) -> str:
        """With how many runs, where there are several."""
        return self.label if len(self.runs) == 1 else f"{self.label} (n = {len(self.runs)})"


def keys(groups: Sequence[Group]) -> list[str]:
    """What the legend of a picture says; nothing where a single run is all there is."""
    return [group.legend for group in groups] if sum(len(group.runs) for group in groups) > 1 else []


def grouped(runs: Sequence[Run], by: Sequence[str] = (), labels: Sequence[str] = ()) -> list[Group]:
    """Runs that have the same values of the keys `by`; without any, of all that may change the model but the seed.

    by: keys or sections. labels: one for each group, in the order of their first runs; without any they are named by
    what they differ in. Raises UserError for an unknown key, labels that do not fit, and too many groups.
    """
    values = [told.values(run.settings) for run in runs]
    keys = _keys(values, by)
    members: dict[tuple[str | None, ...], list[int]] = {}
    for place, of_run in enumerate(values):
        members.setdefault(tuple(of_run.get(key) for key in keys), []).append(place)
    if len(members) > GROUPS_MAX:
        raise UserError(
            f"the runs form {len(members)} groups by {listed(keys)}, expected at most {GROUPS_MAX}; name the keys that "
            "tell them apart with --by, or fewer runs"
        )
    automatic = _labels([values[places[0]] for places in members.values()], keys, runs)
    given = _checked(labels, automatic) if labels else automatic
    return [
        Group(
            label=label,
            runs=tuple(runs[place] for place in places),
            pooled=_pooled([values[place] for place in places]),
        )
        for label, places in zip(given, members.values(), strict=True)
    ]


def _keys(values: Sequence[Mapping[str, str]], by: Sequence[str]) -> list[str]:
    if by:
        return list(dict.fromkeys(key for name in by for key in told.matching(name, values)))
    return [key for key in told.differing(values) if decides(key) and key != told.SEED]


def _pooled(values: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    return tuple(key for key in told.differing(values) if decides(key) and key != told.SEED)


def _labels(values: Sequence[Mapping[str, str]], keys: Sequence[str], runs: Sequence[Run]) -> list[str]:
    """What tells groups apart, in as few words as do. values: of the first run of each."""
    if len(values) == 1:
        only = values[0]["policy.name"] if len(runs) > 1 else runs[0].name
        return [printable(only)]
    differing = [key for key in keys if len({of_group.get(key) for of_group in values}) > 1]
    words = _short(differing)
    labels = []
    for of_group in values:
        text = ", ".join(_said(key, words[key], of_group[key]) for key in differing if key in of_group)
        text = printable(text or "not set")
        labels.append(text if len(text) <= LABEL_MAX else f"{text[: LABEL_MAX - 1]}…")
    twice = {label for label, times in Counter(labels).items() if times > 1}
    return [f"{label} ({place})" if label in twice else label for place, label in enumerate(labels, start=1)]


def _said(key: str, word: str, value: str) -> str:
    """`fedbuff`, `no compensator` or `k 5`."""
    if not key.endswith(".name"):
        return f"{word} {value}"
    return f"no {key.removesuffix('.name')}" if value in ("null", "none") else value


def _short(keys: Sequence[str]) -> dict[str, str]:
    """Each key by its last word, where no other ends with it."""
    last = Counter(key.rpartition(".")[2] for key in keys)
    return {key: word if last[word := key.rpartition(".")[2]] == 1 else key for key in keys}


def _checked(labels: Sequence[str], automatic: Sequence[str]) -> list[str]:
    if len(labels) != len(automatic):
        raise UserError(
            f"--label names {len(labels)}, expected one for each of the {len(automatic)} groups, which are "
            f"{listed(automatic, most=GROUPS_MAX)}; name them in this order"
        )
    given = [printable(label).strip() for label in labels]
    for place, label in enumerate(given):
        if not label or label in given[:place]:
            raise UserError(
                f"--label is {label!r}, expected a name for each group that no other has; name another"
            )
    return given
