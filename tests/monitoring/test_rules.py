"""Rules and alerts: Prometheus accepts them, and each has a unit test, a page and existing metrics."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.kubectl import built
from support.prometheus import MONITORING, PROMTOOL, RULES, faster, needs_prometheus
from unstale.metrics.catalogue import CATALOGUE, CLIENT_CATALOGUE, INJECTOR_CATALOGUE, Metric

ROOT = MONITORING.parents[1]
PAGES = ROOT / "docs/runbooks"
UNIT_TESTS = sorted((MONITORING / "tests").glob("*.yml"))
HEADINGS = ["Meaning", "Impact", "Diagnosis", "Causes", "Actions"]
METRICS = {metric.name: metric for metric in (*CATALOGUE, *CLIENT_CATALOGUE, *INJECTOR_CATALOGUE)}


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


ALERTS = {rule["alert"]: rule for rule in rules() if "alert" in rule}
RECORDED = {rule["record"] for rule in rules() if "record" in rule}


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    assert PROMTOOL is not None
    return subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, check=False, timeout=300)


@needs_prometheus
def test_prometheus_accepts_the_rules() -> None:
    found = promtool("check", "rules", RULES)
    assert found.returncode == 0, found.stderr
    assert f"{len(rules())} rules found" in found.stdout


@needs_prometheus
@pytest.mark.parametrize("file", UNIT_TESTS, ids=lambda file: file.stem)
def test_unit_tests_of_promtool_pass(file: Path) -> None:
    found = promtool("test", "rules", file)
    assert found.returncode == 0, found.stdout + found.stderr


def test_the_operator_gets_the_same_rules_under_its_label() -> None:
    (made,) = built(MONITORING)
    assert (made["apiVersion"], made["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert made["spec"] == yaml.safe_load(RULES.read_text())
    assert "release" in made["metadata"]["labels"]
    assert "namespace" not in made["metadata"], "the user sets the namespace when applying it"


def test_unit_tests_show_each_alert_firing_and_not_firing() -> None:
    cases = [
        case
        for file in UNIT_TESTS
        for test in yaml.safe_load(file.read_text())["tests"]
        for case in test["alert_rule_test"]
    ]
    assert {case["alertname"] for case in cases if "exp_alerts" in case} == ALERTS.keys()
    assert {case["alertname"] for case in cases if "exp_alerts" not in case} == ALERTS.keys()


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_has_a_severity_and_a_runbook(name: str) -> None:
    alert = ALERTS[name]
    assert re.fullmatch(r"Unstale[A-Z]\w+", name)
    assert alert["labels"]["severity"] in ("critical", "warning", "info")
    assert alert["annotations"].keys() == {"summary", "description", "runbook_url"}
    assert alert["annotations"]["runbook_url"] == f"docs/runbooks/{name}.md"
    assert alert["annotations"]["description"].endswith((".", "}}"))


@pytest.mark.parametrize("name", ALERTS)
def test_the_page_of_an_alert_answers_every_question(name: str) -> None:
    page = (PAGES / f"{name}.md").read_text()
    assert page.startswith(f"# {name}\n")
    assert re.findall(r"^## (.+)$", page, flags=re.MULTILINE) == HEADINGS
    index = (PAGES / "README.md").read_text()
    assert f"[{name}]({name}.md) | {ALERTS[name]['labels']['severity']} |" in index


def test_every_page_is_of_an_alert() -> None:
    assert {page.stem for page in PAGES.glob("*.md")} == {*ALERTS, "README"}


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.get("alert") or rule["record"])
def test_a_rule_queries_existing_metrics(rule: dict[str, Any]) -> None:
    check_metrics_exist(rule["expr"])


@pytest.mark.parametrize("name", ALERTS)
def test_a_page_queries_existing_metrics(name: str) -> None:
    page = (PAGES / f"{name}.md").read_text()
    queries = re.findall(r"```promql\n(.*?)```", page, flags=re.DOTALL)
    assert queries
    for query in queries:
        check_metrics_exist(query)


@needs_prometheus
def test_every_query_of_a_page_is_valid(tmp_path: Path) -> None:
    """Queries as rules, which promtool checks without a server."""
    queries = [
        line
        for page in PAGES.glob("*.md")
        for block in re.findall(r"```promql\n(.*?)```", page.read_text(), flags=re.DOTALL)
        for line in block.splitlines()
    ]
    file = tmp_path / "queries.yml"
    each = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries)]
    file.write_text(yaml.safe_dump({"groups": [{"name": "pages", "rules": each}]}))
    found = promtool("check", "rules", file)
    assert found.returncode == 0, found.stderr


def test_accelerated_rules_differ_only_in_times() -> None:
    before = """
groups:
  - name: one
    rules:
      - record: run:x:increase5m
        expr: increase(x_5m_total[5m] offset 1h) + 300 * predict_linear(y[1d], 4 * 3600)
      - alert: Two
        expr: run:x:increase5m > 3600
        for: 10m
        annotations: {summary: no round for 10m}
"""
    (group,) = yaml.safe_load(faster(before, 200))["groups"]
    recorded, alert = group["rules"]
    assert recorded["record"] == "run:x:increase5m"
    assert recorded["expr"] == "increase(x_5m_total[1500ms] offset 18000ms) + 300 * predict_linear(y[432000ms], 4 * 18)"
    assert (alert["expr"], alert["for"]) == ("run:x:increase5m > 3600", "3000ms")
    assert alert["annotations"] == {"summary": "no round for 10m"}


def check_metrics_exist(expression: str) -> None:
    """Check that every metric is in the catalogue or recorded, and has the queried labels."""
    for name in re.findall(r"\b(?:run|instance):[\w:]+", expression):
        assert name in RECORDED
    for name, asked in re.findall(r"(?<![\w:])(unstale_\w+)(?:\{([^}]*)\})?", expression):
        metric = metric_of(name)
        of_metric = {*metric.labels, "le"} if metric.buckets else set(metric.labels)
        assert set(re.findall(r"(\w+)\s*[=!]", asked)) <= of_metric | {"job", "namespace", "instance"}


def metric_of(series: str) -> Metric:
    """The metric of a series name."""
    metric = METRICS.get(series) or METRICS[re.sub(r"_(bucket|sum|count)$", "", series)]
    assert bool(metric.buckets) == (metric.name != series), f"{series} is no series of a {metric.kind}"
    return metric
