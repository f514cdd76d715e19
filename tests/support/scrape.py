"""The HTTP pages of a server, read by prometheus_client's own parser."""

from typing import NamedTuple
from urllib.error import HTTPError
from urllib.request import urlopen

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from support.running import PATIENCE_S


class Page(NamedTuple):
    status: int
    text: str


def get(url: str) -> Page:
    """A page, whatever its status."""
    try:
        with urlopen(url, timeout=PATIENCE_S) as answer:
            return Page(answer.status, answer.read().decode())
    except HTTPError as error:
        with error:
            return Page(error.code, error.read().decode())


def families(http: str) -> dict[str, Metric]:
    """Every metric family by name. http: URL without a path."""
    page = get(f"{http}/metrics")
    assert page.status == 200
    return {family.name: family for family in text_string_to_metric_families(page.text)}


def sample(http: str, name: str, **labels: str) -> float:
    """The value of one sample; 0 where there is none yet, as for a new counter."""
    values = [
        found.value
        for family in families(http).values()
        for found in family.samples
        if found.name == name and found.labels == labels
    ]
    assert len(values) <= 1, f"{name}{labels} is there {len(values)} times"
    return values[0] if values else 0.0
