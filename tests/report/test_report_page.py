"""The page: self-contained, without scripts, escaped and accessible."""

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typing_extensions import override

from report.made import curve, run, small_run
from unstale.journal.rows import Batch
from unstale.report import page
from unstale.report.make import report

HOSTILE = "<script>alert(1)</script>\"'&$\\frac$ {{ 7 * 7 }}"


class Page(HTMLParser):
    """A parsed page. elements: tag and attributes, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.feed(text)

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {key: value or "" for key, value in attrs}))

    @override
    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("runs")
    paths = [run(folder / f"run{seed}", small_run(), seed=seed) for seed in range(2)]
    return page.html(report(paths, targets=[0.5]))


def test_the_policy_allows_the_one_style_sheet_and_nothing_else(text: str) -> None:
    (style,) = re.findall("<style>(.*?)</style>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    (policy,) = [meta["content"] for meta in Page(text).all("meta") if "http-equiv" in meta]
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}'")


def test_a_page_loads_no_resource_and_runs_no_script(text: str) -> None:
    for tag, attributes in Page(text).elements:
        assert tag not in ("script", "link", "iframe", "object", "form", "foreignobject")
        for key, value in attributes.items():
            assert not key.startswith("on") and key != "style", (tag, key)
            if key in ("href", "src"):
                assert value.startswith(("#", "data:image/png;")), (tag, value)
    assert "@import" not in text and "url(http" not in text


def test_names_from_users_are_escaped(tmp_path: Path) -> None:
    path = run(tmp_path / HOSTILE.replace("/", "_"), small_run(), data={"name": HOSTILE})
    found = Page(page.html(report([path, run(tmp_path / "b", small_run())], labels=[HOSTILE, f"_{HOSTILE}"])))
    assert not found.all("script")
    assert any(HOSTILE in line for line in found.texts)


def test_identifiers_are_unique_and_every_reference_exists(text: str) -> None:
    found = Page(text)
    names = [attributes["id"] for _, attributes in found.elements if "id" in attributes]
    assert len(names) == len(set(names))
    for _, attributes in found.elements:
        for key, value in attributes.items():
            referred = re.findall(r"url\(#([^)]+)\)", value)
            referred += [value[1:]] if key == "href" and value.startswith("#") else []
            referred += value.split() if key == "aria-labelledby" else []
            assert not set(referred) - set(names), (key, value)


def test_pictures_and_tables_have_names_for_screen_readers(text: str) -> None:
    found = Page(text)
    pictures = found.all("svg")
    assert pictures and all(attributes["role"] == "img" and attributes["aria-label"] for attributes in pictures)
    assert len(found.all("figcaption")) == len(pictures)
    assert len(found.all("caption")) == len(found.all("table"))
    assert all(attributes.get("scope") in ("col", "row") for attributes in found.all("th"))
    levels = [int(tag[1]) for tag, _ in found.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and set(levels[1:]) == {2}
    assert [attributes["lang"] for attributes in found.all("html")] == ["en"]


def test_colours_are_variables_for_dark_mode(text: str) -> None:
    drawn = "".join(re.findall("<svg.*?</svg>", text, re.DOTALL))
    assert 'class="stroke-series-1"' in drawn and 'class="fill-ink"' in drawn
    assert not re.findall(r"#(?:0072b2|d55e00|1f2328|d0d7de)", drawn)
    for name in set(re.findall(r'class="([^"]+)"', drawn)):
        for single in name.split():
            assert f".{single} " in text


def test_the_same_runs_make_the_same_page_to_the_bit(tmp_path: Path) -> None:
    path = run(tmp_path / "run", small_run())
    assert page.html(report([path])) == page.html(report([path]))


@pytest.mark.parametrize("batch", [Batch(), curve(float("nan")), Batch(tasks=small_run().tasks)])
def test_a_run_with_few_records_has_a_page(batch: Batch, tmp_path: Path) -> None:
    found = Page(page.html(report([run(tmp_path / "run", batch)])))
    assert any("received = aggregated + pending + rejected" in line for line in found.texts)


def test_empty_columns_are_left_out_of_the_page(tmp_path: Path) -> None:
    found = page.html(report([run(tmp_path / "run", small_run())]))
    assert "± std" not in found and "95 % from" not in found
