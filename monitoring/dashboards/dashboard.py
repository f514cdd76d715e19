"""A dashboard as a value, and the JSON of it: layout, variables, links and notes of restarts."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from monitoring.dashboards.panels import DATASOURCE, Panel

SCHEMA_VERSION = 41  # of Grafana 11.6 and 12.0; newer ones migrate it
COLUMNS = 24
TAG = "unstale"
ALL = {"text": ["All"], "value": ["$__all"]}
WHATEVER = ".+"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A choice of the user. metric, label: its values are those of the label. several: or all of them. thousands: there
    may be so many that a query does not list all.
    """

    name: str
    title: str
    metric: str
    label: str
    several: bool = True
    thousands: bool = False

    @property
    def query(self) -> str:
        return f"label_values({self.metric}, {self.label})"

    def json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "label": self.title,
            "type": "query",
            "datasource": DATASOURCE,
            "definition": self.query,
            "query": {"qryType": 1, "query": self.query, "refId": "PrometheusVariableQueryEditor-VariableQuery"},
            "multi": self.several,
            "includeAll": self.several,
            **({"allValue": WHATEVER} if self.thousands else {}),
            "current": ALL if self.several else {},
            "refresh": 2,  # when the time range changes
            "sort": 1,
            "regex": "",
            "hide": 0,
            "options": [],
        }


JOB = Variable(name="job", title="Job", metric="unstale_build_info", label="job")
RUNS = Variable(name="run", title="Run", metric='unstale_run_info{job=~"$job"}', label="run")
RUN = Variable(name="run", title="Run", metric=RUNS.metric, label="run", several=False)
SERVER = Variable(
    name="instance", title="Server", metric='unstale_run_info{job=~"$job", run=~"$run"}', label="instance"
)
CLIENT = Variable(
    name="client",
    title="Client process",
    metric='unstale_client_updates_kept{job=~"$job"}',
    label="instance",
    thousands=True,
)
INJECTOR = Variable(
    name="injector", title="Injector", metric='unstale_injector_connections{job=~"$job"}', label="instance"
)
PROCESS = Variable(
    name="process", title="Process", metric='unstale_build_info{job=~"$job"}', label="instance", thousands=True
)


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under a heading. title: empty for none. folded: initially closed."""

    title: str
    panels: tuple[Panel, ...]
    folded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """uid: in links and bookmarks, so it never changes. subject: the variable that selects its processes."""

    uid: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    subject: Variable
    rows: tuple[Row, ...]

    @property
    def panels(self) -> list[Panel]:
        """All panels in order."""
        return [panel for row in self.rows for panel in row.panels]

    @property
    def started(self) -> str:
        """PromQL of the start times of its processes, in milliseconds."""
        return f'process_start_time_seconds{{job=~"$job", instance=~"${self.subject.name}"}} * 1000'

    def json(self) -> dict[str, Any]:
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": [TAG],
            "schemaVersion": SCHEMA_VERSION,
            "editable": True,
            "graphTooltip": 1,  # one crosshair through all panels
            "time": {"from": "now-1h", "to": "now"},
            "refresh": "30s",
            "timezone": "browser",
            "timepicker": {},
            "links": [_links()],
            "templating": {"list": [_datasource(), *(variable.json() for variable in self.variables)]},
            "annotations": {"list": [_of_grafana(), self._restarts()]},
            "panels": _laid_out(self.rows),
        }

    def text(self) -> str:
        """The content of its file."""
        return json.dumps(self.json(), indent=2, ensure_ascii=False) + "\n"

    def _restarts(self) -> dict[str, Any]:
        return {
            "name": "Starts and restarts",
            "datasource": DATASOURCE,
            "enable": True,
            "hide": False,
            "iconColor": "orange",
            "expr": self.started,
            "titleFormat": f"{self.subject.title} started",
            "textFormat": "{{instance}}",
            "tagKeys": "job",
            "useValueForTime": True,
        }


def placed(panels: Iterable[Panel], y: int = 0) -> tuple[list[tuple[Panel, int, int]], int]:
    """Panels with their corner, in lines from left to right, y the first line; and the first line below them."""
    found: list[tuple[Panel, int, int]] = []
    x = height = 0
    for panel in panels:
        if x + panel.width > COLUMNS:
            x, y, height = 0, y + height, 0
        found.append((panel, x, y))
        x, height = x + panel.width, max(height, panel.height)
    return found, y + height


def _laid_out(rows: Iterable[Row]) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    number = y = 0
    for row in rows:
        heading: dict[str, Any] | None = None
        if row.title:
            number += 1
            heading = _heading(row, number, y)
            made.append(heading)
            y += 1
        corners, below = placed(row.panels, y)
        panels = []
        for panel, x, top in corners:
            number += 1
            panels.append(panel.json(number, x=x, y=top))
        if row.folded:
            assert heading is not None, "a folded row needs a heading"
            heading["panels"] = panels
        else:
            made += panels
            y = below
    return made


def _heading(row: Row, number: int, y: int) -> dict[str, Any]:
    return {
        "id": number,
        "type": "row",
        "title": row.title,
        "collapsed": row.folded,
        "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": y},
        "panels": [],
    }


def _datasource() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "multi": False,
        "includeAll": False,
        "current": {},
        "refresh": 1,
        "regex": "",
        "hide": 0,
        "options": [],
    }


def _links() -> dict[str, Any]:
    """Links to all dashboards with the same tag, with the current variables."""
    return {
        "title": "",
        "type": "dashboards",
        "tags": [TAG],
        "asDropdown": False,
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
        "icon": "external link",
        "tooltip": "",
        "url": "",
    }


def _of_grafana() -> dict[str, Any]:
    """Annotations by users."""
    return {
        "name": "Annotations & Alerts",
        "type": "dashboard",
        "builtIn": 1,
        "datasource": {"type": "grafana", "uid": "-- Grafana --"},
        "enable": True,
        "hide": True,
        "iconColor": "rgba(0, 211, 255, 1)",
    }
