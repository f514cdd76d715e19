"""The dashboard files: complete, and only about existing metrics."""

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from monitoring import __main__ as command
from monitoring import dashboards, querying, units
from support.kubectl import built
from support.prometheus import PROMTOOL, needs_prometheus
from unstale.compensators import registry as compensators
from unstale.coordinator.actions import Outcome
from unstale.coordinator.membership import State as ClientState
from unstale.errors import UserError
from unstale.metrics.catalogue import CATALOGUE, CLIENT_CATALOGUE, INJECTOR_CATALOGUE
from unstale.toxics import registry as toxics
from unstale_client.session import State as SessionState

FOLDER = Path(__file__).parents[2] / "monitoring"
UIDS = [  # in links and bookmarks of users: stable
    "unstale-overview",
    "unstale-staleness",
    "unstale-aggregation",
    "unstale-wire",
    "unstale-injector",
    "unstale-resources",
]
KINDS = {"timeseries", "stat", "bargauge", "heatmap", "histogram", "table"}  # none that Grafana has removed
METRICS = {metric.name: metric for metric in (*CATALOGUE, *CLIENT_CATALOGUE, *INJECTOR_CATALOGUE)}
OF_PROCESSES = {
    "process_cpu_seconds_total",
    "process_max_fds",
    "process_open_fds",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
    "up",
}
OF_PROMETHEUS = {"ALERTS"}
VALUES: Mapping[str, set[str]] = {
    "outcome": {*Outcome, "trained", "failed", "code-error", "superseded"},
    "state": {*(one.name.lower() for one in ClientState), *(one.value for one in SessionState)},
    "direction": {"received", "sent"},
    "phase": {"wait", "compensate", "aggregate", "evaluate", "checkpoint"},
    "split": {"central", "clients", "training", "policy"},
    "statistic": {"mean", "std", "worst_tenth", "best_tenth"},
    "method": set(compensators.names()),
    "measure": {"l1", "cosine"},
    "toxic": set(toxics.names()),
    "le": {bound for metric in METRICS.values() for bound in metric.bounds},
}

OVERVIEW, STALENESS, *_ = dashboards.DASHBOARDS

each_dashboard = pytest.mark.parametrize("uid", UIDS)


def read(uid: str) -> dict[str, Any]:
    text = (FOLDER / f"grafana/dashboards/{uid}.json").read_text(encoding="utf-8")
    made: dict[str, Any] = json.loads(text)
    return made


def panels_of(uid: str) -> Iterator[dict[str, Any]]:
    """All panels except headings, including those of folded rows."""
    for panel in read(uid)["panels"]:
        if panel["type"] != "row":
            yield panel
        yield from panel.get("panels", ())


def expressions_of(uid: str) -> Iterator[str]:
    """PromQL of panels, variables and restart annotations."""
    board = read(uid)
    yield from (target["expr"] for panel in panels_of(uid) for target in panel["targets"])
    yield from (one["definition"] for one in board["templating"]["list"] if one["type"] == "query")
    yield from (one["expr"] for one in board["annotations"]["list"] if "expr" in one)


def selectors_of(uid: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Metric and label matchers."""
    for expression in expressions_of(uid):
        for name, matchers in re.findall(r"([a-zA-Z_:][\w:]*)\{([^}]*)\}", expression):
            yield name, dict(re.findall(r'(\w+)(?:=~|!=|=)"([^"]*)"', matchers))


def family(name: str) -> str:
    """The metric that a series belongs to."""
    for part in ("_bucket", "_sum", "_count"):
        if (found := METRICS.get(name.removesuffix(part))) and found.kind == "histogram":
            return found.name
    return name


def test_the_files_equal_the_generated_ones() -> None:
    for path, text in command.files().items():
        assert path.read_text(encoding="utf-8") == text, f"run python -m monitoring: {path.name} is not up to date"
    assert {path.stem for path in (FOLDER / "grafana/dashboards").iterdir()} == set(UIDS)


def test_the_dashboard_ids_are_stable() -> None:
    assert [board.uid for board in dashboards.DASHBOARDS] == UIDS
    titles = [board.title for board in dashboards.DASHBOARDS]
    assert len(set(titles)) == len(titles)


@each_dashboard
def test_a_panel_documents_its_content_unit_and_consequence(uid: str) -> None:
    found = list(panels_of(uid))
    assert len({panel["id"] for panel in found}) == len(found)
    for panel in found:
        assert panel["type"] in KINDS
        assert panel["title"] and not panel["title"].endswith(".")
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["targets"]
        steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        assert steps[0]["value"] is None
        assert steps[1:] == sorted(steps[1:], key=lambda step: step["value"])
        legends = [target["legendFormat"] for target in panel["targets"]]
        if panel["type"] in {"timeseries", "bargauge", "heatmap"}:
            assert "__auto" not in legends and len(set(legends)) == len(legends)


@each_dashboard
def test_panels_fit_the_grid_without_overlap(uid: str) -> None:
    for level in (read(uid)["panels"], *(row["panels"] for row in read(uid)["panels"] if "panels" in row)):
        for panel in level:
            place = panel["gridPos"]
            assert place["x"] >= 0 and place["x"] + place["w"] <= 24
        for one, other in combinations((panel["gridPos"] for panel in level), 2):
            beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
            below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
            assert beside or below


@each_dashboard
def test_queried_metrics_are_in_the_catalogue(uid: str) -> None:
    for name, matchers in selectors_of(uid):
        if name in OF_PROCESSES | OF_PROMETHEUS:
            continue
        metric = METRICS[family(name)]
        assert (name != metric.name) == (metric.kind == "histogram"), f"{name} is no series"
        assert matchers.keys() <= {*metric.labels, "job", "instance", "le"}


@each_dashboard
def test_labels_are_compared_with_their_possible_values(uid: str) -> None:
    for name, matchers in selectors_of(uid):
        for label, wanted in matchers.items():
            if not wanted.startswith("$") and name != "ALERTS":
                assert set(wanted.split("|")) <= VALUES[label], f"{name} has no {label} {wanted}"


@each_dashboard
def test_a_colour_belongs_to_a_possible_series(uid: str) -> None:
    for panel in panels_of(uid):
        legends = [target["legendFormat"] for target in panel["targets"]]
        labels = {label for legend in legends for label in re.findall(r"\{\{(\w+)\}\}", legend)}
        possible = set(legends).union(*(VALUES[label] for label in labels & VALUES.keys()))
        for one in panel["fieldConfig"]["overrides"]:
            if panel["type"] != "table":
                assert one["matcher"]["options"] in possible


@each_dashboard
def test_variables_are_defined_before_use(uid: str) -> None:
    known = {"__rate_interval", "__range", "datasource"}
    for variable in read(uid)["templating"]["list"]:
        assert set(re.findall(r"\$(\w+)", variable.get("definition", ""))) <= known
        known.add(variable["name"])
    for expression in expressions_of(uid):
        assert set(re.findall(r"\$(\w+)", expression)) <= known


@each_dashboard
def test_a_panel_has_no_series_per_client(uid: str) -> None:
    """There may be thousands of client processes."""
    for panel in panels_of(uid):
        for target in panel["targets"]:
            per_process = "{{instance}}" in target["legendFormat"]
            if per_process and re.search(r'"\$(client|process)"', target["expr"]):
                assert re.match(r"(top|bottom)k\(\d+, ", target["expr"])


@each_dashboard
def test_links_point_to_existing_dashboards(uid: str) -> None:
    board = read(uid)
    (links,) = board["links"]
    assert links["tags"] == board["tags"] and links["includeVars"] and links["keepTime"]
    assert set(re.findall(r"/d/([\w-]+)", json.dumps(board))) <= set(UIDS)


def test_every_metric_is_on_a_dashboard() -> None:
    shown = {family(name) for uid in UIDS for name, _ in selectors_of(uid)}
    assert METRICS.keys() <= shown


@needs_prometheus
def test_the_time_left_of_a_run_with_rounds_of_an_hour_is_its_rounds_times_an_hour(tmp_path: Path) -> None:
    (query,) = next(panel for panel in OVERVIEW.panels if panel.title == "Time left").queries
    series = {  # a round at 60m and one at 120m, of ten
        "unstale_run_rounds": "10+0x150",
        "unstale_model_version": "0+0x59 1+0x59 2+0x30",
        "unstale_round_duration_seconds_sum": "0+0x59 3600+0x59 7200+0x30",
        "unstale_round_duration_seconds_count": "0+0x59 1+0x59 2+0x30",
    }
    labels = '{job="unstale-server", instance="a:9464"}'
    filled = querying.filled(query.expression, {"job": ".+", "instance": ".+", "__rate_interval": "1m"})
    case = {
        "interval": "1m",
        "input_series": [{"series": name + labels, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {"expr": filled, "eval_time": "130m", "exp_samples": [{"labels": "{}", "value": 8 * 3600}]}
        ],
    }
    file = tmp_path / "test.yml"
    file.write_text(yaml.safe_dump({"tests": [case]}))
    assert PROMTOOL is not None
    found = subprocess.run([PROMTOOL, "test", "rules", file], capture_output=True, text=True, check=False, timeout=60)
    assert found.returncode == 0, found.stdout + found.stderr


# ----------------------------------------------------------------------------------------------------- beside the files


def test_variables_are_interpolated_as_in_grafana() -> None:
    run = OVERVIEW.variables[1]
    span = querying.Span(start_s=1000, end_s=1060, step_s=1, scrape_s=15)
    asked: list[Mapping[str, str]] = []

    def get(path: str, parameters: Mapping[str, str]) -> list[str]:
        asked.append({"path": path, **parameters})
        return ["b.1", "a"]

    found = {"job": "(x)"}
    assert querying.values_of(get, run, found, span) == ["a", "b.1"]
    assert asked == [
        {"path": "label/run/values", "match[]": 'unstale_run_info{job=~"(x)"}', "start": "1000", "end": "1060"}
    ]
    chosen = querying.chosen(get, STALENESS, span)
    assert chosen["job"] == "(a|b\\\\.1)"  # several, as a regular expression in a PromQL string
    assert chosen["run"] == "a"  # one value: the first
    assert querying.chosen(get, STALENESS, span, run="b.1")["run"] == "b\\\\.1"
    with pytest.raises(UserError, match="unknown run 'c'"):
        querying.chosen(get, STALENESS, span, run="c")
    assert chosen["client"] == ".+"  # thousands of values
    assert (chosen["__rate_interval"], chosen["__range"]) == ("60000ms", "60000ms")  # 4 scrapes of 15 s


@pytest.mark.parametrize(
    ("value", "unit", "decimals", "text"),
    [
        (0.9312, "percentunit", 1, "93.1%"),
        (0.25, "s", None, "250 ms"),
        (90, "s", 0, "2 mins"),
        (90, "s", None, "1.5 mins"),
        (3 * 1024**3, "bytes", None, "3 GiB"),
        (2048, "binBps", None, "2 KiB/s"),
        (12_300, "count:updates/s", None, "12.3 K updates/s"),
        (3, "count:rounds", 0, "3 rounds"),
        (0, "s", None, "0 s"),
        (1500, "short", None, "1.5 K"),
        (1500, "none", None, "1500"),
        (float("nan"), "s", None, "–"),
    ],
)
def test_numbers_are_written_with_their_units(value: float, unit: str, decimals: int | None, text: str) -> None:
    assert units.shown(value, unit, decimals) == text


def test_a_threshold_colours_from_its_bound_on() -> None:
    steps = dashboards.panels.Steps("green", ((1, "yellow"), (10, "red")))
    assert [steps.colour(value) for value in (0, 1, 9.9, 10)] == ["green", "yellow", "yellow", "red"]


def test_a_preview_without_prometheus_is_one_error_sentence(tmp_path: Path) -> None:
    arguments = ["preview", "--prometheus", "http://127.0.0.1:9", "--out", str(tmp_path)]
    found = CliRunner().invoke(command.app, arguments)
    assert isinstance(found.exception, UserError)
    assert str(found.exception).startswith("--prometheus is 'http://127.0.0.1:9', expected the address of a Prometheus")


def test_the_grafana_provisioning_names_every_path() -> None:
    (board,) = provisioned("dashboards/unstale.yml")["providers"]
    assert board["options"]["path"].endswith("/unstale")
    (source,) = provisioned("datasources/prometheus.yml")["datasources"]
    scraping = yaml.safe_load((FOLDER / "prometheus/prometheus.yml").read_text())["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == scraping


def provisioned(name: str) -> dict[str, Any]:
    made: dict[str, Any] = yaml.safe_load((FOLDER / "grafana/provisioning" / name).read_text())
    assert made["apiVersion"] == 1
    return made


def test_kubernetes_mounts_every_dashboard_and_the_rules() -> None:
    maps = built(FOLDER)
    of_grafana = [one for one in maps if one["metadata"]["labels"].get("grafana_dashboard") == "1"]
    assert {name for one in of_grafana for name in one["data"]} == {f"{uid}.json" for uid in UIDS}
    for one in of_grafana:
        assert len(json.dumps(one)) < 256 * 1024, "kubectl apply stores a copy in an annotation"
    (rules,) = [one for one in maps if one not in of_grafana]
    assert rules["metadata"]["name"] == "unstale-rules"
    assert rules["data"]["unstale.rules.yml"] == (FOLDER / "prometheus/rules/unstale.rules.yml").read_text()
