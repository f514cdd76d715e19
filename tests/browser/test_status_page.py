"""The status page in a real browser."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import expect

from support.browser import WINDOWS, Look, barriers, needs_chromium
from support.processes import free_port
from support.running import RunningServer, small, until
from support.shown import NOBODY, Site
from support.wire import RawClient
from unstale.compensators import Compensated, MeasuredError
from unstale.server import pages
from unstale.training.measured import MainMetric

pytestmark = [pytest.mark.network, pytest.mark.slow, needs_chromium]

ONES = np.ones(650, dtype="<f4")


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as made:
        yield made


def eventful(site: Site) -> None:
    """Add every kind of content that the page can show."""
    site.begin()
    for version in range(1, 61):
        site.round(staleness=(0, version % 7, 3), weights=(0.5, 0.25, 0.25))
        error = MeasuredError(client_id=1, method="none", l1=3.0 + version % 5, cosine=0.5, staleness=3)
        better = MeasuredError(client_id=1, method="first-order", l1=2.0 + version % 3, cosine=0.25, staleness=3)
        site.status.compensated(version, [Compensated(method="first-order")], [error, better], {"budget": 1})
    site.status.saved(60, 0.25)
    site.status.rejected("expired-task")
    site.status.refused("malformed-header")
    site.status.given_back("code-error")
    site.status.quarantined()
    site.now(
        clients={**NOBODY, "working": 11, "waiting": 4, "lost": 3, "left": 2},
        updates={"accepted": 180, "duplicate": 2, "rejected": 1},
        pending=4,
    )


def text_of(page: Any, selector: str) -> str:
    text: str = page.locator(selector).inner_text()
    return text.replace("\u202f", " ")


def history(page: Any) -> list[str]:
    """The journal's history of a run, without times, which have another origin."""
    rounds = page.locator("#last tbody tr").all_inner_texts()
    figures = [text_of(page, name) for name in ("#run", "#main-metric", "#second-metric", "#staleness")]
    return [*figures, *(line.rpartition("\t")[0] for line in rounds)]


def test_the_page_shows_a_run_during_its_rounds_and_at_its_end(look: Look) -> None:
    settings = small(clients=1, rounds=3, evaluate_every=1, server={"linger_s": 30.0})
    with RunningServer(settings) as server, RawClient(server.address) as client:
        page = look(server.http, forgiven="net::ERR")  # when the server has ended
        expect(page.locator("#state")).to_have_text("Waiting for clients")
        expect(page.locator("#hint")).to_have_text("0 of the 1 clients that the run needs to start have joined.")
        client.join()
        for version in range(1, 4):
            task, _ = client.task()
            expect(page.locator("#state")).to_have_text("Running")
            client.answer(task, ONES)
            expect(page.locator("#version")).to_have_text(str(version))
            expect(page.locator("#last tbody tr")).to_have_count(version)
        expect(page.locator("#state")).to_have_text("Finished")
        expect(page.locator("#main-metric")).to_have_text(re.compile(r"^\d+\.\d\d.%$"))
        expect(page.locator("#accepted")).to_have_text("3")
        client.leave_after_stop()
        digest = server.end().model_digest
        expect(page.locator("#about")).to_contain_text(digest)
        expect(page.locator("#banner")).to_have_text("The server has ended. This is its last state.")


def test_the_page_continues_with_a_restarted_server_and_its_journal(look: Look, tmp_path: Path) -> None:
    settings = small(
        clients=1,
        rounds=9,
        evaluate_every=1,
        run={"directory": str(tmp_path / "run")},
        server={"http_address": f"127.0.0.1:{free_port()}"},
    )
    with RunningServer(settings) as server, RawClient(server.address) as client:
        page = look(server.http, forgiven="net::ERR")
        client.join()
        for _ in range(3):
            client.answer(client.task()[0], ONES)
        expect(page.locator("#last tbody tr")).to_have_count(3)
        expect(page.locator("#main-chart .dot")).to_have_count(4)  # versions 0 to 3
        before = history(page)
    expect(page.locator("#state")).to_have_text("Stopped")
    expect(page.locator("#banner")).to_be_visible()
    with RunningServer(settings) as server, RawClient(server.address) as client:
        expect(page.locator("#banner")).to_be_hidden()
        after = history(page)
        assert after == before
        client.join()
        client.answer(client.task()[0], ONES)
        expect(page.locator("#last tbody tr")).to_have_count(4)
        expect(page.locator("#main-chart .dot")).to_have_count(5)
        expect(page.locator("#state")).to_have_text("Running")


def test_a_dead_server_is_reported_and_its_last_numbers_stay(look: Look) -> None:
    with Site() as site:
        site.begin()
        site.round()
        page = look(site.url, forgiven="net::ERR")
        expect(page.locator("#state")).to_have_text("Running")
        address = site.address
    expect(page.locator("#state")).to_have_text("Server not reachable")
    expect(page.get_by_role("alert")).to_have_text("The server is not reachable: reconnecting. This is its last state.")
    expect(page.locator("#version")).to_have_text("1")
    with Site(address, policy="dynsgd") as other:  # another run
        other.begin()
        expect(page.locator("#state")).to_have_text("Running")
        expect(page.get_by_role("alert")).to_be_hidden()
        expect(page.locator("#about")).to_contain_text("dynsgd")
        expect(page.locator("#last tbody tr")).to_have_count(0)


def test_beyond_the_stream_limit_a_page_polls(look: Look, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "STREAMS_MAX", 0)
    site.begin()
    site.round()
    page = look(site.url, forgiven="503")
    expect(page.locator("#version")).to_have_text("1")
    expect(page.locator("#banner")).to_contain_text("too many pages are open")
    monkeypatch.setattr(pages, "STREAMS_MAX", 1)
    site.round()
    expect(page.locator("#version")).to_have_text("2")
    expect(page.locator("#banner")).to_be_hidden()


def test_behind_a_buffering_proxy_a_page_polls(look: Look, site: Site) -> None:
    site.begin()
    site.round()
    held_back = """window.EventSource = class extends EventTarget {
      readyState = 1;
      close() {}
    };"""
    page = look(site.url, script=held_back)
    for version in ("1", "2"):
        expect(page.locator("#version")).to_have_text(version)
        expect(page.locator("#banner")).to_contain_text("a proxy buffers the events")
        site.round()


def test_a_hidden_page_releases_its_stream_and_resumes_when_visible(look: Look, site: Site) -> None:
    site.begin()
    site.round()
    page = look(site.url)
    expect(page.locator("#version")).to_have_text("1")
    seen = """hidden => {
      Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));
    }"""
    page.evaluate(seen, True)
    site.round()  # it reveals the closed stream
    until(lambda: site.pages._streams == 0, "the stream is given back")
    page.evaluate(seen, False)
    expect(page.locator("#version")).to_have_text("2")
    expect(page.locator("#banner")).to_be_hidden()


def test_the_title_shows_the_progress_of_a_hidden_page(look: Look) -> None:
    with Site(rounds=200) as site:
        site.begin()
        page = look(site.url, script="window.requestAnimationFrame = () => 0;")  # as in a hidden window
        for _ in range(199):
            site.round()
        expect(page).to_have_title("99\u202f% · unstale")  # 99.5 %: not complete


def test_a_page_before_the_first_event_has_a_notice(look: Look, site: Site) -> None:
    page = look(site.url)
    expect(page.locator("#main-chart .plot")).to_have_text("Not measured yet: the first evaluation follows round 1.")
    expect(page.locator("#staleness-chart .plot")).to_have_text("No round has been applied yet.")
    expect(page.locator("#last-empty")).to_be_visible()
    expect(page.locator("#rejections-empty")).to_have_text("Nothing was rejected.")
    expect(page.locator("#compensation-chart")).to_be_hidden()
    assert [text_of(page, name) for name in ("#elapsed", "#left", "#round-time", "#main-metric")] == ["–"] * 4
    assert barriers(page) == []


def test_every_number_equals_the_reported_one(look: Look) -> None:
    with Site(compensator="first-order") as site:
        eventful(site)
        page = look(site.url)
        expect(page.locator("#version")).to_have_text("60")
        shown = {
            "#rounds": "100",
            "#round-time": "1.00 s",
            "#main-metric": "60.00 %",
            "#second-metric": "0.0167",
            "#staleness": f"{sum(version % 7 + 3 for version in range(1, 61)) / 180:.2f}",
            "#staleness-note": "rounds, at most 6",
            "#accepted": "180",
            "#accepted-note": "4 pending",
            "#rejected": "1",
            "#rejected-note": "2 duplicates",
            "#active": "15",
            "#active-note": "of 20, 3 lost",
            "#quarantines": "1 time a client was quarantined.",
            "#main-chart .readout": "round 60 · 60.00 % · after 1 min 00 s",
        }
        assert {name: text_of(page, name) for name in shown} == shown
        newest = page.locator("#last tbody tr").first
        assert newest.locator("td, th").all_inner_texts()[2:] == [
            "2.33 (at most 4)",
            "875\u202fms",
            "1\u202fmin 00\u202fs",
        ]
        assert page.locator("#rejections tbody tr").all_inner_texts() == [
            "code-error\ncode of its client's user raised\n\t0\t0\t1",
            "expired-task\ntoo late: its task was taken back\n\t1\t0\t0",
            "malformed-header\t0\t1\t0",
        ]
        expect(page.locator("#compensation-note")).to_have_text(
            "Compensated: 60 by first-order. Fallbacks: 60 (budget)."
        )


def test_metrics_other_than_accuracy_are_shown_by_name_with_the_direction_of_the_main_one(look: Look) -> None:
    with Site(main=MainMetric("mae", higher_is_better=False)) as site:
        site.begin()
        page = look(site.url)
        expect(page.locator("#main-title")).to_have_text("mae")
        expect(page.locator("#metrics-card")).to_be_hidden()
        for version, mae in ((1, 2.0), (2, 1.5), (3, 1.75)):
            site.status.evaluated(version, {"mae": mae, "rmse": 3.0}, "clients", evaluate_s=0.0, at_s=site.live.at_s)
        clients, training, policy = {"mae": 1.75, "rmse": 3.25}, {"loss": 0.5}, {"stage": 2.0}
        site.status.follow(lambda: {"clients": clients, "training": training, "policy": policy})
        expect(page.locator("#main-title")).to_have_text("Clients' mae")
        tiles = [" ".join(text.split()) for text in page.locator(".tile").all_inner_texts()[:2]]
        assert tiles == ["Clients' mae 1.75 best, lowest: 1.50", "Clients' rmse 3.00 at round 3"]
        page.get_by_text("Clients' mae as a table").click()
        table = page.get_by_role("table", name="Clients' mae by round, the newest first")
        expect(table.get_by_role("row")).to_have_count(4)  # the table is opened
        assert table.get_by_role("row").all_inner_texts()[:2] == ["Round\tmae\tAfter", "3\t1.75\t0\u202fms"]
        assert page.locator("#metrics tr").all_inner_texts() == [
            "Metric\tClients, mean\tTraining, mean\tPolicy",
            "mae\t1.75\t–\t–",
            "rmse\t3.25\t–\t–",
            "loss\t–\t0.500\t–",
            "stage\t–\t–\t2",
        ]
        assert barriers(page) == []


def test_a_single_metric_has_one_tile_and_one_wide_chart(look: Look) -> None:
    with Site(main=MainMetric("mae", higher_is_better=False)) as site:
        site.begin()
        page = look(site.url)
        site.status.evaluated(1, {"mae": 2.0}, "central", evaluate_s=0.0)
        expect(page.locator("#second-chart")).to_be_hidden()
        expect(page.locator(".tile:visible")).to_have_count(5)


def test_the_data_of_a_chart_is_available_as_a_table(look: Look, site: Site) -> None:
    site.begin()
    for _ in range(3):
        site.round()
    page = look(site.url)
    page.get_by_text("Accuracy as a table").click()
    table = page.get_by_role("table", name="Test accuracy by round, the newest first")
    expect(table.get_by_role("row")).to_have_count(4)
    assert [text.replace("\u202f", " ") for text in table.get_by_role("row").all_inner_texts()] == [
        "Round\tAccuracy\tAfter",
        "3\t3.00 %\t3.00 s",
        "2\t2.00 %\t2.00 s",
        "1\t1.00 %\t1.00 s",
    ]
    site.round()
    expect(table.get_by_role("row")).to_have_count(5)


def test_a_chart_is_read_with_the_arrow_keys(look: Look, site: Site) -> None:
    site.begin()
    for _ in range(30):
        site.round()
    page = look(site.url)
    chart = page.get_by_role("slider", name="Accuracy, read with the arrow keys")
    expect(chart).to_have_attribute("aria-valuemax", "30")
    chart.focus()
    for key, version in (("ArrowLeft", 29), ("PageDown", 19), ("Home", 1), ("ArrowRight", 2), ("End", 30)):
        chart.press(key)
        expect(chart).to_have_attribute(
            "aria-valuetext", re.compile(rf"^round {version} · {version}\.00.% · after {version}(\.\d+)?.s$")
        )
    chart.hover(position={"x": 52, "y": 40})
    expect(page.locator("#main-chart .readout")).to_have_text(re.compile("^round 1 "))


def test_the_cursor_stays_at_its_round_while_rounds_are_added(look: Look, site: Site) -> None:
    site.begin()
    for _ in range(50):  # the number of shown rounds
        site.round()
    page = look(site.url)
    chart = page.get_by_role("slider", name="Duration of a round by phase, read with the arrow keys")
    expect(chart).to_have_attribute("aria-valuemax", "50")
    chart.focus()
    chart.press("ArrowLeft")
    readout = page.locator("#phases-chart .readout")
    expect(readout).to_have_text(re.compile("^round 49 "))
    for _ in range(10):
        site.round()
    expect(page.locator("#version")).to_have_text("60")
    expect(readout).to_have_text(re.compile("^round 49 "))
    chart.press("ArrowRight")
    expect(readout).to_have_text(re.compile("^round 50 "))


def test_the_focused_element_is_not_announced_for_every_round(look: Look, site: Site) -> None:
    site.begin()
    site.round()
    page = look(site.url)
    chart = page.get_by_role("slider", name="Staleness of updates, read with the arrow keys")
    chart.focus()
    chart.press("Home")
    text = "0 rounds late · 1 update · 50.0\u202f%"
    expect(chart).to_have_attribute("aria-valuetext", text)
    site.round(staleness=(0, 0, 0), weights=(0.5, 0.25, 0.25))
    expect(page.locator("#staleness-chart .readout")).to_have_text("0 rounds late · 4 updates · 80.0\u202f%")
    expect(chart).to_have_attribute("aria-valuetext", text)
    chart.press("Home")
    expect(chart).to_have_attribute("aria-valuetext", "0 rounds late · 4 updates · 80.0\u202f%")


def test_a_touched_point_is_announced_when_the_finger_is_lifted(look: Look, site: Site) -> None:
    site.begin()
    for _ in range(30):
        site.round()
    page = look(site.url, WINDOWS["phone"])
    expect(page.locator("#version")).to_have_text("30")
    page.locator("#main-chart .plot").tap(position={"x": 52, "y": 40})
    expect(page.locator("#main-chart .readout")).to_have_text(re.compile("^round 1 "))


def test_an_opened_round_stays_open_while_rounds_are_added(look: Look, site: Site) -> None:
    site.begin()
    site.round(staleness=(0, 4), weights=(0.75, 0.25))
    page = look(site.url)
    page.locator("#last summary").click()
    site.round()
    expect(page.locator("#last tbody tr")).to_have_count(2)
    opened = page.locator("#last tbody tr").nth(1)
    expect(opened.locator("li")).to_have_text(["0.750 fresh", "0.250 4 rounds late"])
    expect(opened.locator("ol")).to_be_visible()


def test_a_pause_freezes_the_page_and_its_end_shows_missed_rounds(look: Look, site: Site) -> None:
    site.begin()
    site.round()
    page = look(site.url)
    expect(page.locator("#version")).to_have_text("1")
    button = page.get_by_role("button", name="Pause updates")
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")
    other = look(site.url)
    for version in ("2", "3"):  # the second version appears after the first page's time for one
        site.round()
        expect(other.locator("#version")).to_have_text(version)
    expect(page.locator("#banner")).to_have_text("Paused. The run continues.")
    expect(page.locator("#version")).to_have_text("1")
    button.click()
    expect(page.locator("#version")).to_have_text("3")


def test_names_from_users_are_shown_as_text(look: Look) -> None:
    hostile = "</script><img src=x onerror=alert(1)><b>&amp;\"'`${1}"
    with Site(run=hostile, model=hostile, data=hostile, policy=hostile, compensator=hostile) as site:
        eventful(site)
        site.status.rejected(hostile)
        site.status.compensated(60, [Compensated(method=hostile)], [], {hostile: 1})
        page = look(site.url)
        expect(page.locator("#run")).to_have_text(hostile)
        expect(page.locator("#about")).to_contain_text(hostile)
        expect(page.locator("#rejections")).to_contain_text(hostile)
        expect(page.locator("#compensation-note")).to_contain_text(hostile)
        assert page.locator("img, b b, script + script").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("window", WINDOWS)
def test_the_page_is_accessible(window: str, look: Look, tmp_path: Path) -> None:
    with Site(compensator="first-order") as site:
        eventful(site)
        page = look(site.url, {**WINDOWS[window], "reduced_motion": "reduce"})
        expect(page.locator("#version")).to_have_text("60")
        for summary in page.locator("summary").all()[:6]:
            summary.click()
        page.get_by_role("button").click()
        for state in ("gathering", "idle", "running", "finished", "stopped", "lost", "loading"):
            page.evaluate("state => { document.getElementById('state').dataset.state = state; }", state)
            assert barriers(page) == [], state
        assert page.evaluate("document.getAnimations().length") == 0
        page.screenshot(path=tmp_path / f"{window}.png", full_page=True)
        drawn = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", drawn))) < 128 * 3) == window.endswith("dark")


def test_only_a_change_of_state_is_announced(look: Look, site: Site) -> None:
    site.begin()
    page = look(site.url)
    expect(page.locator("#state")).to_have_text("Running")
    page.evaluate(
        """() => {
          window.said = [];
          for (const live of document.querySelectorAll("[role=status], [role=alert], [aria-live]")) {
            const watched = { childList: true, subtree: true, characterData: true };
            new MutationObserver(() => said.push(live.textContent)).observe(live, watched);
          }
        }"""
    )
    for version in range(1, 4):
        site.round()
        expect(page.locator("#version")).to_have_text(str(version))
    assert page.evaluate("said") == []
    site.finish()
    expect(page.locator("#state")).to_have_text("Finished")
    assert page.evaluate("said") == ["Finished"]


def test_the_layout_is_stable_while_numbers_change(look: Look, site: Site) -> None:
    site.begin()
    site.round()
    page = look(site.url)
    expect(page.locator("#version")).to_have_text("1")
    boxes = """() => [...document.querySelectorAll(".card, .tile, .plot")].slice(0, 14).map((each) => {
      const { x, y, width } = each.getBoundingClientRect();
      return [x, y, width];
    })"""
    upper = "() => document.querySelector('#last').getBoundingClientRect().y"
    before, top = page.evaluate(boxes), page.evaluate(upper)
    for _ in range(40):
        site.round(staleness=(0, 12, 3), weights=(0.5, 0.25, 0.25))
    site.now(updates={"accepted": 123_456, "duplicate": 7, "rejected": 1234}, pending=99)
    expect(page.locator("#version")).to_have_text("41")
    expect(page.locator("#accepted")).to_have_text("123,456")
    assert page.evaluate(boxes) == before
    assert page.evaluate(upper) == top
