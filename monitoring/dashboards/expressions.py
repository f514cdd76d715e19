"""PromQL of the panels, made from the catalogue, so that no metric or label can be misspelt.

Series are selected by `job` and `instance`, the labels that Prometheus adds to its targets. The dashboard's variables
map a run to its instances, so no query has to join.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from unstale.metrics.catalogue import CLIENT_CATALOGUE, INJECTOR_CATALOGUE, RUN_INFO, Metric

WINDOW = "$__rate_interval"  # at least four scrapes in Grafana
SHOWN = "$__range"  # the whole displayed time range
LINES_MAX = 20  # readers cannot distinguish more, and there may be thousands of client processes


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
    """A metric of every process, its own or Prometheus'."""
    return _selected(name, "process")


def rate(metric: Metric, *by: str, part: str = "", **values: Wanted) -> str:
    """Growth of a counter per second. by: labels to keep; all others are summed."""
    return f"{_sum(by)}(rate({of(metric, part, **values)}[{WINDOW}]))"


def mean(metric: Metric, *by: str) -> str:
    """Mean of the values of a histogram."""
    return f"{rate(metric, *by, part='sum')} / {rate(metric, *by, part='count')}"


def quantile(share: float, metric: Metric, *by: str) -> str:
    """Quantile of the values of a histogram."""
    return f"histogram_quantile({share}, {rate(metric, 'le', *by, part='bucket')})"


def spread(metric: Metric, over: str = WINDOW) -> str:
    """Number of values in each bucket."""
    return f"sum by (le) (increase({of(metric, 'bucket')}[{over}]))"


def share(part: str, whole: str) -> str:
    """The share of a part; empty where the whole is 0. part: may be missing before its first event."""
    return f"({part} or 0 * {whole}) / ({whole} > 0)"


def latest(metric: Metric, *by: str, **values: Wanted) -> str:
    """A gauge of one run, from its current process; summed over parts."""
    return f"{_sum(by)}({of(metric, '', **values)})"


def most(expression: str) -> str:
    """The largest series, at most `LINES_MAX`."""
    return f"topk({LINES_MAX}, {expression})"


def least(expression: str) -> str:
    """The smallest series, at most `LINES_MAX`."""
    return f"bottomk({LINES_MAX}, {expression})"


def named(expression: str) -> str:
    """The expression with the policy of its run as a label. expression: one series per instance."""
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
