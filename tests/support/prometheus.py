"""A real Prometheus on loopback, which scrapes the targets of a test and evaluates rules."""

import json
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest
import yaml

from support.processes import free_port
from support.running import PATIENCE_S

PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
MONITORING = Path(__file__).parents[2] / "monitoring/prometheus"
RULES = MONITORING / "rules/unstale.rules.yml"
SCRAPE = "200ms"
_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

needs_prometheus = pytest.mark.skipif(
    PROMETHEUS is None or PROMTOOL is None,
    reason="prometheus and promtool are not installed (Debian: apt-get install prometheus)",
)


def faster(rules: str, times: int) -> str:
    """A file of rules with every duration divided: ranges, offsets, `for`, and seconds that are written N * 3600."""
    read = yaml.safe_load(rules)
    for group in read["groups"]:
        for rule in group["rules"]:
            rule["expr"] = re.sub(
                r"(\[|\boffset )(\d+[smhd])\b", lambda found: found[1] + _divided(found[2], times), rule["expr"]
            )
            rule["expr"] = re.sub(r"(?<=\* )3600\b", f"{3600 / times:g}", rule["expr"])
            if "for" in rule:
                rule["for"] = _divided(rule["for"], times)
    return yaml.safe_dump(read, sort_keys=False)


def _divided(duration: str, times: int) -> str:
    return f"{int(duration[:-1]) * _UNITS_MS[duration[-1]] // times}ms"


class Series(NamedTuple):
    """One element of an instant vector."""

    labels: dict[str, str]
    value: float


class Prometheus:
    """Runs within a context. targets: HOST:PORT by job. rules: files of rules, evaluated as often as it
    scrapes, which is every `scrape`."""

    def __init__(
        self, folder: Path, targets: Mapping[str, Sequence[str]], *, rules: Sequence[Path] = (), scrape: str = SCRAPE
    ) -> None:
        assert PROMETHEUS is not None
        self.url = f"http://127.0.0.1:{free_port()}"
        configuration = folder / "prometheus.yml"
        configuration.write_text(
            yaml.safe_dump(
                {
                    "global": {"scrape_interval": scrape, "evaluation_interval": scrape},
                    "rule_files": [str(path) for path in rules],
                    "scrape_configs": [
                        {"job_name": job, "static_configs": [{"targets": list(addresses)}]}
                        for job, addresses in targets.items()
                    ],
                }
            )
        )
        self._log = folder / "prometheus.log"
        self._command = [
            PROMETHEUS,
            f"--config.file={configuration}",
            f"--storage.tsdb.path={folder / 'prometheus'}",
            f"--web.listen-address={self.url.removeprefix('http://')}",
            "--query.lookback-delta=2s",  # many scrapes, and short enough that ended series disappear
            "--log.level=warn",
        ]

    def __enter__(self) -> Self:
        with self._log.open("w") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        try:
            self.until(lambda: self._is_ready(), "Prometheus is ready")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE_S)

    def query(self, expression: str) -> list[Series]:
        """An instant query, now. Raises AssertionError with the message of Prometheus when it is refused."""
        found = self.get("query", query=expression)
        if found["resultType"] == "scalar":
            return [Series({}, float(found["result"][1]))]
        return [Series(one["metric"], float(one["value"][1])) for one in found["result"]]

    def get(self, path: str, **parameters: str) -> Any:
        """`data` of an answer of its HTTP API."""
        url = f"{self.url}/api/v1/{path}?{urlencode(parameters)}"
        with urlopen(Request(url), timeout=PATIENCE_S) as answer:
            reply = json.load(answer)
        assert reply["status"] == "success", reply
        return reply["data"]

    def firing(self) -> set[str]:
        """Names of the alerts that fire now."""
        return {alert["labels"]["alertname"] for alert in self.get("alerts")["alerts"] if alert["state"] == "firing"}

    def until(self, holds: Callable[[], object], what: str) -> None:
        """Wait for a condition, while Prometheus runs: longer than elsewhere, since it takes several scrapes."""
        pause = threading.Event()
        for _ in range(int(4 * PATIENCE_S / 0.1)):
            if holds():
                return
            assert self._process.poll() is None, f"Prometheus has ended: {self._log.read_text()}"
            pause.wait(0.1)
        raise AssertionError(f"timeout: {what}")

    def _is_ready(self) -> bool:
        try:
            with urlopen(f"{self.url}/-/ready", timeout=PATIENCE_S) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False
