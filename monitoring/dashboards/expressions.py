"""PromQL of the panels, made from the catalogue, so that no metric or label can be misspelt.

Series are chosen by `job` and `instance`, the labels that Prometheus gives to what it scrapes. Which instances belong
to a run is what the dashboard's variables find out, so no query has to join.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from unstale.metrics.catalogue import CLIENT_CATALOGUE, INJECTOR_CATALOGUE, RUN_INFO, Metric

WINDOW = "$__rate_interval"  # at least four scrapes, as Grafana reckons
SHOWN = "$__range"  # all that the dashboard shows
LINES_MAX = 20  # more in a panel cannot be told apart, and client processes may be thousands


@dataclass(frozen=True, slots=True)
class Not:
    """Any value of a label but this one."""

    value: str


Wanted = str | tuple[str, ...] | Not
"""A value of a label, one of some, or any but one."""

_VARIABLE = {metric.name: "client" for metric in CLIENT_CATALOGUE} | {
    metric.name: "injector" for metric in INJECTOR_CATALOGUE
}


def of(metric: Metric, part: str = "", **values: Wanted) -> str:
    """The series of a metric. part: `bucket`, `sum` or `count` of a histogram. values: by label."""
    unknown = values.keys() - {*metric.labels, *(("le",) if part == "bucket" else ())}
    assert not unknown, f"{metric.name} has no {unknown}"
    name = f"{metric.name}_{part}" if part else metric.name
    matchers = [_matcher(label, wanted) for label, wanted in values.items()]
    return _selected(name, _VARIABLE.get(metric.name, "instance"), matchers)


def of_process(name: str) -> str:
    """What every process says of itself, or Prometheus says of it."""
    return _selected(name, "process")


def rate(metric: Metric, *by: str, part: str = "", **values: Wanted) -> str:
    """How much a counter grows a second. by: labels that are kept apart; all others are summed."""
    return f"{_sum(by)}(rate({of(metric, part, **values)}[{WINDOW}]))"


def mean(metric: Metric, *by: str) -> str:
    """Of the values that a histogram counts."""
    return f"{rate(metric, *by, part='sum')} / {rate(metric, *by, part='count')}"


def quantile(share: float, metric: Metric, *by: str) -> str:
    """Of the values that a histogram counts: this share of them is at most so large."""
    return f"histogram_quantile({share}, {rate(metric, 'le', *by, part='bucket')})"


def spread(metric: Metric, over: str = WINDOW) -> str:
    """How many values fell into each bucket."""
    return f"sum by (le) (increase({of(metric, 'bucket')}[{over}]))"


def share(part: str, whole: str) -> str:
    """Nothing where the whole is nothing. part: may be missing as long as nothing of it happened."""
    return f"({part} or 0 * {whole}) / ({whole} > 0)"


def latest(metric: Metric, *by: str, **values: Wanted) -> str:
    """A gauge of one run, whichever process of it runs now; summed where it belongs to parts."""
    return f"{_sum(by)}({of(metric, '', **values)})"


def most(expression: str) -> str:
    """The series that are largest, of as many as there may be."""
    return f"topk({LINES_MAX}, {expression})"


def least(expression: str) -> str:
    """The series that are smallest, of as many as there may be."""
    return f"bottomk({LINES_MAX}, {expression})"


def named(expression: str) -> str:
    """With the policy of its run as a further label. expression: of one series for each instance."""
    return f"{expression} * on (job, instance) group_left (policy) {of(RUN_INFO)}"


def _selected(name: str, variable: str, matchers: Sequence[str] = ()) -> str:
    all_matchers = ['job=~"$job"', f'instance=~"${variable}"', *matchers]
    return f"{name}{{{', '.join(all_matchers)}}}"


def _matcher(label: str, wanted: Wanted) -> str:
    if isinstance(wanted, Not):
        return f'{label}!="{wanted.value}"'
    if isinstance(wanted, str):
        return f'{label}="{wanted}"'
    alternatives = "|".join(wanted)
    return f'{label}=~"{alternatives}"'


def _sum(by: tuple[str, ...]) -> str:
    return f"sum by ({', '.join(by)}) " if by else "sum"
