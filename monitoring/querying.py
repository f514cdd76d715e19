"""Queries of dashboards asked of a Prometheus, with their variables filled in as Grafana does."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

from monitoring.dashboards.dashboard import WHATEVER, Dashboard, Variable
from monitoring.dashboards.panels import Panel, Query
from unstale.errors import UserError, unknown_name

Get = Callable[[str, Mapping[str, str]], Any]
"""`data` of an answer of Prometheus' HTTP API: to a path below /api/v1/, with parameters."""

PATIENCE_S = 30.0  # upper limit of a dashboard's query


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The displayed time, in seconds since 1970. step_s: between two points. scrape_s: between two scrapes."""

    start_s: float
    end_s: float
    step_s: float
    scrape_s: float

    @property
    def windows(self) -> dict[str, str]:
        """Grafana's own variables."""
        return {
            "__rate_interval": _duration(max(self.step_s + self.scrape_s, 4 * self.scrape_s)),
            "__range": _duration(self.end_s - self.start_s),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points of one set of labels, in order of time. values: nan if missing. query: its index in the panel."""

    name: str
    labels: Mapping[str, str]
    times_s: list[float]
    values: list[float]
    query: int = 0


def over_http(url: str) -> Get:
    """A query function. url: of a Prometheus. It raises UserError without an answer and for a refused query."""

    def get(path: str, parameters: Mapping[str, str]) -> Any:
        address = f"{url.rstrip('/')}/api/v1/{path}?{urlencode(parameters)}"
        try:
            with urlopen(address, timeout=PATIENCE_S) as answer:  # noqa: S310  (the reader's own Prometheus)
                return json.load(answer)["data"]
        except (URLError, ValueError, KeyError) as error:
            raise UserError(
                f"--prometheus is '{url}', expected the address of a Prometheus that answers, such as "
                f"http://127.0.0.1:9090: {error}"
            ) from error

    return get


def chosen(get: Get, dashboard: Dashboard, span: Span, run: str | None = None) -> dict[str, str]:
    """The initial values of its variables, by name: all values, or the first for a single choice.

    run: replaces the first. Raises UserError for an unknown run.
    """
    found = span.windows
    for variable in dashboard.variables:
        values = values_of(get, variable, found, span)
        if variable.name == "run" and run is not None:
            if run not in values:
                raise unknown_name("run", run, values)
            values = [run]
        found[variable.name] = _joined(variable, values)
    return found


def values_of(get: Get, variable: Variable, found: Mapping[str, str], span: Span) -> list[str]:
    """The values of a variable. found: values of the variables before it."""
    parameters = {"match[]": filled(variable.metric, found), **_between(span)}
    values: list[str] = get(f"label/{variable.label}/values", parameters)
    return sorted(values)


def filled(expression: str, found: Mapping[str, str]) -> str:
    """The expression with its variables interpolated. Raises KeyError for an unknown one."""
    return re.sub(r"\$(\w+)", lambda variable: found[variable[1]], expression)


def asked(get: Get, panel: Panel, found: Mapping[str, str], span: Span) -> list[Series]:
    """The data of a panel. found: values of the variables."""
    return [
        Series(
            name=_name(query, one["metric"]),
            labels=one["metric"],
            times_s=[float(at_s) for at_s, _ in one["points"]],
            values=[float(value) for _, value in one["points"]],
            query=place,
        )
        for place, query in enumerate(panel.queries)
        for one in _answer(get, filled(query.expression, found), span, instant=panel.instant)
    ]


def _answer(get: Get, expression: str, span: Span, *, instant: bool) -> list[dict[str, Any]]:
    if instant:
        found = get("query", {"query": expression, "time": str(span.end_s)})["result"]
        return [{"metric": one["metric"], "points": [one["value"]]} for one in found]
    parameters = {"query": expression, **_between(span), "step": str(span.step_s)}
    found = get("query_range", parameters)["result"]
    return [{"metric": one["metric"], "points": one["values"]} for one in found]


def _between(span: Span) -> dict[str, str]:
    return {"start": str(span.start_s), "end": str(span.end_s)}


def _joined(variable: Variable, values: list[str]) -> str:
    """The variable in a PromQL string: one value, or an expression that matches all."""
    if variable.thousands:
        return WHATEVER
    escaped = [re.escape(value).replace("\\", "\\\\") for value in values]
    return f"({'|'.join(escaped)})" if variable.several else (escaped or [""])[0]


def _name(query: Query, labels: Mapping[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda label: labels.get(label[1], ""), query.legend)


def _duration(seconds: float) -> str:
    return f"{ceil(1000 * seconds)}ms"
