"""Panels as values, and their JSON for Grafana. The dashboard places them."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
Format = Literal["time_series", "heatmap", "table"]
COUNT = "count:"
"""Prefix of the unit of a count."""
NONE_YET = {"type": "special", "options": {"match": "null+nan", "result": {"text": "–", "index": 0}}}


@dataclass(frozen=True, slots=True)
class Query:
    """legend: the name of a series, with its labels as {{label}}."""

    expression: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Steps:
    """A colour up to the first bound, and one from each bound on."""

    base: str = "green"
    above: tuple[tuple[float, str], ...] = ()

    def colour(self, value: float) -> str:
        """The colour of a value."""
        return ([self.base] + [colour for bound, colour in self.above if value >= bound])[-1]

    def json(self) -> dict[str, Any]:
        steps: list[dict[str, object]] = [{"color": self.base, "value": None}]
        steps += [{"color": colour, "value": bound} for bound, colour in self.above]
        return {"mode": "absolute", "steps": steps}


PLAIN = Steps("blue")
"""Steps without good or bad values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel(ABC):
    """One panel. unit: Grafana's id of it. width: of 24 columns. height: in rows of 30 pixels. colours: by name of a
    series, where it means something.
    """

    kind: ClassVar[str]
    format: ClassVar[Format] = "time_series"
    instant: ClassVar[bool] = False

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    width: int = 12
    height: int = 8
    steps: Steps = PLAIN
    minimum: float | None = 0
    maximum: float | None = None
    decimals: int | None = None
    colours: Mapping[str, str] = field(default_factory=dict)

    def unit_of_values(self) -> str:
        """The unit beside each value in Grafana."""
        return self.unit

    @abstractmethod
    def options(self) -> dict[str, Any]:
        """Options of this kind of panel."""

    def custom(self) -> dict[str, Any]:
        """Options of each series of this kind of panel."""
        return {}

    def colour(self) -> dict[str, Any]:
        """The colour mode of a series."""
        return {"mode": "thresholds"}

    def overrides(self) -> list[dict[str, Any]]:
        """Properties of some series."""
        return [override(name, color={"mode": "fixed", "fixedColor": colour}) for name, colour in self.colours.items()]

    def transformations(self) -> list[dict[str, Any]]:
        """Transformations of the answers before display."""
        return []

    def json(self, number: int, *, x: int, y: int) -> dict[str, Any]:
        """number: of the panel in its dashboard. x, y: its upper left corner."""
        defaults = {
            "unit": self.unit_of_values(),
            "min": self.minimum,
            "max": self.maximum,
            "decimals": self.decimals,
            "noValue": "–",
            "color": self.colour(),
            "thresholds": self.steps.json(),
            "mappings": [NONE_YET],
            "custom": self.custom(),
        }
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.description,
            "datasource": DATASOURCE,
            "gridPos": {"h": self.height, "w": self.width, "x": x, "y": y},
            "targets": [
                {
                    "refId": chr(ord("A") + place),
                    "datasource": DATASOURCE,
                    "editorMode": "code",
                    "expr": query.expression,
                    "legendFormat": query.legend or "__auto",
                    "format": self.format,
                    "instant": self.instant,
                    "range": not self.instant,
                }
                for place, query in enumerate(self.queries)
            ],
            "fieldConfig": {
                "defaults": {name: value for name, value in defaults.items() if value is not None},
                "overrides": self.overrides(),
            },
            "options": self.options(),
            **({"transformations": made} if (made := self.transformations()) else {}),
        }


def override(series: str, **properties: object) -> dict[str, Any]:
    """Properties of one series or column, by its name."""
    return {
        "matcher": {"id": "byName", "options": series},
        "properties": [{"id": name, "value": value} for name, value in properties.items()],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSeries(Panel):
    """Lines over time. stacked: on each other, for their sum. lined: the thresholds are drawn. log: logarithmic
    axis.
    """

    kind: ClassVar[str] = "timeseries"
    stacked: bool = False
    lined: bool = False
    log: bool = False

    @property
    def axis(self) -> str:
        """The counted things, written beside the axis once and not at each tick."""
        return self.unit.removeprefix(COUNT) if self.unit.startswith(COUNT) else ""

    def unit_of_values(self) -> str:
        return "short" if self.axis else self.unit

    def colour(self) -> dict[str, Any]:
        return {"mode": "palette-classic"}

    def custom(self) -> dict[str, Any]:
        return {
            "drawStyle": "line",
            "lineInterpolation": "linear",
            "lineWidth": 1 if self.stacked else 2,
            "fillOpacity": 35 if self.stacked else 6,
            "gradientMode": "none",
            "showPoints": "auto",  # with rare rounds a value may have no neighbour
            "spanNulls": False,
            "axisPlacement": "auto",
            "axisLabel": self.axis,
            "axisBorderShow": False,
            "scaleDistribution": {"type": "log", "log": 10} if self.log else {"type": "linear"},
            "stacking": {"mode": "normal" if self.stacked else "none", "group": "A"},
            "thresholdsStyle": {"mode": "dashed" if self.lined else "off"},
        }

    def options(self) -> dict[str, Any]:
        return {
            "legend": {"showLegend": True, "displayMode": "list", "placement": "bottom", "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc", "hideZeros": self.stacked},
        }


def _newest() -> dict[str, Any]:
    return {"calcs": ["lastNotNull"], "fields": "", "values": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat(Panel):
    """The newest value, large, over its history."""

    kind: ClassVar[str] = "stat"
    width: int = 4
    height: int = 4

    def options(self) -> dict[str, Any]:
        return {
            "colorMode": "value",
            "graphMode": "area",
            "justifyMode": "auto",
            "orientation": "auto",
            "textMode": "value",
            "wideLayout": True,
            "showPercentChange": False,
            "reduceOptions": _newest(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars(Panel):
    """A bar for the current value of each series. by_value: red for small values, green for large ones."""

    kind: ClassVar[str] = "bargauge"
    instant: ClassVar[bool] = True
    by_value: bool = False

    def colour(self) -> dict[str, Any]:
        return {"mode": "continuous-RdYlGr" if self.by_value else "thresholds"}

    def options(self) -> dict[str, Any]:
        return {
            "displayMode": "basic",
            "orientation": "horizontal",
            "valueMode": "text",
            "namePlacement": "left",
            "showUnfilled": True,
            "sizing": "auto",
            "minVizWidth": 8,
            "minVizHeight": 12,
            "maxVizHeight": 32,
            "legend": {"showLegend": False, "displayMode": "list", "placement": "bottom", "calcs": []},
            "reduceOptions": _newest(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread(Bars):
    """A bar for each bucket of a histogram."""

    format: ClassVar[Format] = "heatmap"


@dataclass(frozen=True, slots=True, kw_only=True)
class Heatmap(Panel):
    """Buckets of a histogram over time. unit: of the bounds."""

    kind: ClassVar[str] = "heatmap"
    format: ClassVar[Format] = "heatmap"
    minimum: float | None = None

    def custom(self) -> dict[str, Any]:
        return {"scaleDistribution": {"type": "linear"}}

    def options(self) -> dict[str, Any]:
        return {
            "calculate": False,
            "color": {
                "mode": "scheme",
                "scheme": "Viridis",
                "exponent": 0.5,
                "fill": "dark-orange",
                "reverse": False,
                "scale": "exponential",
                "steps": 64,
            },
            "cellGap": 1,
            "cellValues": {"unit": "short", "decimals": 0},
            "filterValues": {"le": 1e-9},
            "rowsFrame": {"layout": "auto"},
            "showValue": "never",
            "yAxis": {"axisPlacement": "left", "reverse": False, "unit": self.unit},
            "legend": {"show": True},
            "tooltip": {"mode": "single", "showColorScale": True, "yHistogram": True},
            "exemplars": {"color": "rgba(255,0,255,0.7)"},
        }


@dataclass(frozen=True, slots=True)
class Column:
    """field: a label, or `Value #A` of the first query. link: to another dashboard, by its uid, for the row's run."""

    field: str
    title: str
    unit: str = ""
    link: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(Panel):
    """A row for each set of labels that the queries share."""

    kind: ClassVar[str] = "table"
    format: ClassVar[Format] = "table"
    instant: ClassVar[bool] = True
    minimum: float | None = None
    width: int = 24
    columns: tuple[Column, ...]

    def custom(self) -> dict[str, Any]:
        return {"align": "left", "cellOptions": {"type": "auto"}, "filterable": False, "inspect": False}

    def overrides(self) -> list[dict[str, Any]]:
        found = [override(one.title, unit=one.unit) for one in self.columns if one.unit]
        for one in self.columns:
            if one.link:
                url = f"/d/{one.link}?var-run=${{__value.raw}}&${{datasource:queryparam}}&${{__url_time_range}}"
                found.append(override(one.title, links=[{"title": "Open this run", "url": url}]))
        return found

    def transformations(self) -> list[dict[str, Any]]:
        wanted = [one.field for one in self.columns]
        return [
            {"id": "merge", "options": {}},
            {"id": "filterFieldsByName", "options": {"include": {"names": wanted}}},
            {
                "id": "organize",
                "options": {
                    "excludeByName": {},
                    "includeByName": {},
                    "indexByName": {name: place for place, name in enumerate(wanted)},
                    "renameByName": {one.field: one.title for one in self.columns},
                },
            },
        ]

    def options(self) -> dict[str, Any]:
        return {
            "showHeader": True,
            "cellHeight": "sm",
            "footer": {"show": False, "reducer": ["sum"], "countRows": False, "fields": ""},
        }
