"""The page of all claims: rows and cells by hand, and the published page from the published results."""

import csv
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.stored import A_IS_BEST, FULL, preset, results
from unstale.cli import main
from unstale.report import files
from unstale_papers import published
from unstale_papers.claims import headlines
from unstale_papers.claims.headlines import Headline
from unstale_papers.claims.sizes import comparisons
from unstale_papers.claims.summary import SummaryRow, rows
from unstale_papers.cli import reproduce_claims
from unstale_papers.output import claims_page
from unstale_papers.preset import Claim, Preset
from unstale_papers.presets.registry import PRESETS
from unstale_papers.scale import Scale
from unstale_papers.store import Store, StoredResult

RESULTS = Path(__file__).parents[1] / "results"
QUARTER = Scale(rounds=0.25)
THREE = {"A": [0.60, 0.61, 0.62], "B": [0.50] * 3}


def rows_of(of: Preset, stored: list[StoredResult], *first: Headline) -> list[SummaryRow]:
    return rows([of], comparisons(stored, [of]), {(one.preset, one.claim): one for one in first})


def headline(verdict: str | None = None, why: str = "", *evidence: str) -> Headline:
    return Headline.model_validate(
        {"preset": "tiny", "claim": "A is best.", "short": "best", "verdict": verdict, "why": why}
        | {"evidence": list(evidence)}
    )


def table(page: str) -> dict[str, list[str]]:
    """Cells of the rows by claim."""
    lines = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    return {cells[0]: cells[1:] for cells in lines}


# Cells


def test_a_row_has_the_mean_lead_with_its_interval_beside_the_printed_one(tmp_path: Path) -> None:
    of = preset(printed={"A": 0.58, "B": 0.5})
    page = claims_page.text(rows_of(of, results(of, THREE), headline()), tmp_path)
    # By 10, 11 and 12 points: mean 11, sd 1; 4.303 / sqrt(3) = 2.484 with two degrees of freedom.
    assert table(page)["best"] == [
        *("**holds**, 3 seeds", "1 of 1", "+11.00 points (+8.52 to +13.48)", "+8.00 points", "tiny, full size")
    ]
    assert page.startswith("# What four papers claim, and what was found\n\nOf 1 headline claim 1 holds.\n\n")


def test_one_seed_is_named_and_has_no_interval(tmp_path: Path) -> None:
    of = preset()
    page = claims_page.text(rows_of(of, results(of, {"A": [0.5], "B": [0.6]}), headline()), tmp_path)
    assert table(page)["best"][:3] == ["**does not hold**, one seed", "0 of 1", "-10.00 points"]
    assert "1 verdict is of one seed, and another seed may turn it." in page


def test_a_comparison_with_more_seeds_that_decides_is_named(tmp_path: Path) -> None:
    """A is behind B by 10, 11 and 12 points; C has the first seed alone."""
    of = preset(methods="ABC")
    stored = results(of, {"A": [0.50] * 3, "B": [0.60, 0.61, 0.62], "C": [0.40]})
    page = claims_page.text(rows_of(of, stored, headline()), tmp_path)
    assert table(page)["best"][0] == "**does not hold**, one seed, 3 of the deciding comparison"
    assert "of one seed" not in page


def test_comparisons_without_a_number_are_counted_and_explained(tmp_path: Path) -> None:
    of = preset(methods="ABC")
    page = claims_page.text(rows_of(of, results(of, THREE), headline()), tmp_path)
    assert table(page)["best"][:2] == ["**cannot be told**, 3 seeds", "1 of 1, 1 missing"]
    assert "- *best*: Over 3 seeds: ahead in 1 of 1 comparison" in page
    assert "1 comparison of 2 without a number." in page


@pytest.mark.parametrize(
    ("claimed", "ours", "in_print"),
    [
        # Leads by 10 and 20 points on average over seeds.
        ({"at_least": 0.03, "each": True}, "+15.00 points, least +10.00 points", "at least +3.00 points in each"),
        ({"at_least": 0.03}, "+15.00 points, least +10.00 points", "at least +3.00 points"),
        # 0.6 / 0.5 and 0.6 / 0.4: the geometric mean is sqrt(1.8).
        ({"at_least": 1.2, "as_ratio": True}, "1.34 times, least 1.20 times", "at least 1.20 times"),
        # A claimed ratio near 1 has three digits.
        ({"at_least": 1.002, "as_ratio": True}, "1.34 times, least 1.20 times", "at least 1.002 times"),
        # A large one has three digits, too.
        ({"at_least": 1234.0, "as_ratio": True}, "1.34 times, least 1.20 times", "at least 1,230 times"),
        # A is the only cell of `better`, and is above the level; so is B of `worse`, beside which C is below it.
        ({"level": 0.45}, "60.00 %", "level 45.00 %"),
        ({"level": 0.45, "worse": {"method": "B"}}, "50.00 %", "level 45.00 %"),
        ({"level": 0.7}, "60.00 %", "level 70.00 %"),
    ],
)
def test_kinds_of_claims(tmp_path: Path, claimed: Mapping[str, float], ours: str, in_print: str) -> None:
    of = preset(replace(A_IS_BEST, **claimed), methods="ABC")
    page = claims_page.text(rows_of(of, results(of, {"A": [0.6], "B": [0.5], "C": [0.4]})), tmp_path)
    assert table(page)["A is best."][2:4] == [ours, in_print]


def test_a_lead_that_is_smaller_than_claimed_is_called_so(tmp_path: Path) -> None:
    """By 11 points, where 20 are claimed, and once where B is ahead in a second comparison."""
    of = preset(replace(A_IS_BEST, at_least=0.2), methods="ABC")
    ahead = claims_page.text(
        rows_of(of, results(of, {**THREE, "C": [0.5] * 3}), headline("does not hold", "So.")), tmp_path
    )
    assert table(ahead)["best"][0] == "**does not hold**, ahead by less, 3 seeds"
    behind = claims_page.text(rows_of(of, results(of, {**THREE, "C": [0.7] * 3}), headline()), tmp_path)
    assert table(behind)["best"][0] == "**does not hold**, 3 seeds"


def test_a_lead_within_the_spread_is_not_called_ahead(tmp_path: Path) -> None:
    """By 0, 1 and 2 points, where 20 are claimed: mean 1, sd 1, 2.484 to either side."""
    of = preset(replace(A_IS_BEST, at_least=0.2))
    page = claims_page.text(rows_of(of, results(of, {"A": [0.50, 0.51, 0.52], "B": [0.5] * 3}), headline()), tmp_path)
    assert table(page)["best"][:3] == ["**does not hold**, 3 seeds", "1 of 1", "+1.00 points (-1.48 to +3.48)"]


def test_a_comparison_that_is_behind_in_further_seeds_is_not_called_ahead(tmp_path: Path) -> None:
    """A leads B and C in the first seed, the only one of C, and is behind B by 10, 11 and 12 points in the others."""
    of = preset(methods="ABC")
    stored = results(of, {"A": [0.51, *[0.50] * 6], "B": [0.50, *[0.60, 0.61, 0.62] * 2], "C": [0.40]})
    page = claims_page.text(rows_of(of, stored, headline()), tmp_path)
    assert table(page)["best"][:2] == ["**does not hold**, one seed, 7 of the deciding comparison", "1 of 2"]


def test_a_caveat_is_beside_the_verdict_that_it_belongs_to(tmp_path: Path) -> None:
    of = preset()
    for verdict, shown in (("holds", "**holds**, but B is broken, 3 seeds"), ("does not hold", "**holds**, 3 seeds")):
        first = headline(verdict, "So.").model_copy(update={"caveat": "but B is broken"})
        assert table(claims_page.text(rows_of(of, results(of, THREE), first), tmp_path))["best"][0] == shown


def test_the_printed_lead_is_of_the_comparisons_that_were_measured(tmp_path: Path) -> None:
    """In print A leads B by 8 points and C by 30; without a run of C it is 8, and 19 without any."""
    of = preset(methods="ABC", printed={"A": 0.58, "B": 0.5, "C": 0.28})
    assert table(claims_page.text(rows_of(of, results(of, THREE)), tmp_path))["A is best."][3] == "+8.00 points"
    assert table(claims_page.text(rows_of(of, [], headline()), tmp_path))["best"][3] == (
        "+19.00 points, least +8.00 points"
    )
    assert claims_page.of_programs(rows_of(of, results(of, THREE))).rows[0][15:17] == (0.08, 0.08)


def test_a_run_that_missed_its_target_bounds_the_lead(tmp_path: Path) -> None:
    # A reaches 40 % at version 10. B ends there without it, which counts as 11 rounds: by at least 1.
    of = preset(Claim(text="A is first.", measure="rounds to 40 %", better={"method": "A"}))
    page = claims_page.text(rows_of(of, results(of, {"A": [0.5], "B": [0.3]})), tmp_path)
    assert table(page)["A is first."][:3] == ["**holds**, one seed", "1 of 1", "at least +1 rounds"]
    page = claims_page.text(rows_of(of, results(of, {"A": [0.3], "B": [0.5]})), tmp_path)
    assert table(page)["A is first."][:3] == ["**does not hold**, one seed", "0 of 1", "at most -1 rounds"]


def test_runs_without_any_comparable_number_are_not_called_not_run(tmp_path: Path) -> None:
    of = preset(Claim(text="A is first.", measure="rounds to 40 %", better={"method": "A"}))
    page = claims_page.text(rows_of(of, results(of, {"A": [0.3], "B": [0.3]})), tmp_path)
    assert table(page)["A is first."][:3] == ["**cannot be told**", "–", "–"]
    assert "## Not run" not in page


# Sizes


def test_the_largest_size_is_on_the_page_and_every_size_in_the_csv_file() -> None:
    of = preset()
    every = rows_of(of, [*results(of, THREE, QUARTER), *results(of, {"A": [0.4], "B": [0.5]})])
    assert [one.scale for one in every[0].results] == [FULL, QUARTER]
    assert every[0].largest == every[0].results[0]
    found = claims_page.of_programs(every)
    named = [dict(zip([column.name for column in found.columns], row, strict=True)) for row in found.rows]
    assert [(one["verdict"], one["seeds"], one["lead"], one["scale_rounds"]) for one in named] == [
        ("does not hold", 1, -0.1, 1.0),
        ("holds", 3, 0.11, 0.25),
    ]


def test_a_size_without_a_comparable_number_does_not_hide_a_smaller_one(tmp_path: Path) -> None:
    of = preset()
    full = [one for one in results(of, THREE) if "method=A" in one.name]
    page = claims_page.text(rows_of(of, [*full, *results(of, THREE, QUARTER)]), tmp_path)
    assert table(page)["A is best."][-1] == "tiny, rounds x 0.25"


def test_headlines_of_smaller_runs_are_counted(tmp_path: Path) -> None:
    of = preset()
    page = claims_page.text(rows_of(of, results(of, THREE, QUARTER), headline()), tmp_path)
    assert (
        "1 verdict is of shorter or smaller runs than the paper's, where an effect of long ones may be absent.\n"
        in page
    )
    worse = results(of, {"A": [0.4], "B": [0.5]}, QUARTER)
    assert "may be absent; 1 of them does not hold.\n" in claims_page.text(rows_of(of, worse, headline()), tmp_path)
    assert "smaller runs" not in claims_page.text(rows_of(of, results(of, THREE), headline()), tmp_path)


# Explanations, links and claims that are not run


def test_an_explanation_is_shown_only_with_the_verdict_that_it_explains(tmp_path: Path) -> None:
    of = preset()
    for verdict, is_shown in (("holds", True), ("does not hold", False)):
        page = claims_page.text(rows_of(of, results(of, THREE), headline(verdict, "A is better.")), tmp_path)
        assert ("- *best*: A is better." in page) == is_shown


def test_links_are_to_files_that_exist(tmp_path: Path) -> None:
    of = preset()
    every = rows_of(of, results(of, THREE), headline("holds", "It is.", "search.md"))
    assert "](" not in claims_page.text(every, tmp_path).partition("## FedHist")[2].partition("## How")[0]
    (tmp_path / "tiny").mkdir()
    (tmp_path / "full").mkdir()
    for name in ("tiny/tiny.md", "full/tiny.md", "search.md"):
        (tmp_path / name).touch()
    page = claims_page.text(every, tmp_path)
    assert "| [tiny](tiny/tiny.md), full size |" in page
    assert "It is. ([search](search.md))" in page
    (tmp_path / "tiny/tiny.md").unlink()
    assert "| [tiny](full/tiny.md), full size |" in claims_page.text(every, tmp_path)


def test_the_page_names_the_text_that_says_how_results_were_made(tmp_path: Path) -> None:
    every = rows_of(preset(), results(preset(), THREE), headline())
    assert "](README.md)" not in claims_page.text(every, tmp_path)
    (tmp_path / "README.md").touch()
    assert "[How the results were made](README.md)" in claims_page.text(every, tmp_path)


def test_a_link_is_to_the_page_of_the_preset_that_the_runs_were_computed_for(tmp_path: Path) -> None:
    """`other` has the runs of `tiny`, until it has one of its own."""
    tiny, other = preset(), preset(name="other", methods="ABC")
    for name in ("tiny", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.md").touch()

    def link(stored: list[StoredResult]) -> str:
        every = rows([other], comparisons(stored, [tiny, other]), {})
        return table(claims_page.text(every, tmp_path))["A is best."][-1]

    assert link(results(tiny, THREE)) == "[tiny](tiny/tiny.md), full size"
    assert link([*results(tiny, THREE), *results(other, {"C": [0.1]})]) == "[other](other/other.md), full size"


def test_claims_without_results_are_listed_by_preset(tmp_path: Path) -> None:
    other = replace(A_IS_BEST, text="A is better than C.", worse={"method": "C"})
    of = preset(A_IS_BEST, other, methods="ABC", printed={"A": 0.58, "B": 0.5})
    page = claims_page.text(rows_of(of, [], headline()), tmp_path)
    assert table(page)["best"] == ["not run", "–", "–", "+8.00 points", "tiny"]
    assert "A is better than C." not in page
    assert "2 claims: tiny (2).\n" in page
    assert "1 is not run." in page


def test_headlines_are_first_and_other_claims_follow(tmp_path: Path) -> None:
    other = replace(A_IS_BEST, text="A is better than B.", worse={"method": "B"})
    of = preset(other, A_IS_BEST)
    assert [one.claim for one in rows_of(of, results(of, THREE), headline())] == [A_IS_BEST, other]
    page = claims_page.text(rows_of(of, results(of, THREE), headline()), tmp_path)
    assert page.index("| best |") < page.index("## Further claims") < page.index("| A is better than B. |")


# The command


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Preset:
    of = preset()
    monkeypatch.setitem(PRESETS, "tiny", lambda: of)
    return of


def test_the_command_reads_a_store(tmp_path: Path, tiny: Preset, capsys: pytest.CaptureFixture[str]) -> None:
    with Store.open(tmp_path) as store:
        store.take(results(tiny, THREE))
    assert main.run(["reproduce", "claims", "--store", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"written: {tmp_path}/claims.md, {tmp_path}/claims.csv\n"
    assert "| A is best. | **holds**, 3 seeds |" in (tmp_path / "claims.md").read_text()
    with (tmp_path / "claims.csv").open() as opened:
        (row,) = (row for row in csv.DictReader(opened) if row["preset"] == "tiny")
    assert (row["verdict"], row["lead"], row["unit"], row["is_headline"]) == ("holds", "0.11", "ratio", "false")


def test_exported_results_give_the_same_page(tmp_path: Path, tiny: Preset, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "exported"
    folder.mkdir()
    with Store.open(tmp_path) as store:
        store.take(results(tiny, THREE))
        published.write(store, folder / "tiny.jsonl")
    assert main.run(["reproduce", "claims", "--from", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "event": "written",
        "files": [str(folder / "claims.md"), str(folder / "claims.csv")],
    }
    reproduce_claims.write(tmp_path, None)
    assert (folder / "claims.md").read_text() == (tmp_path / "claims.md").read_text()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--store", "there is no store in {folder}, expected one that `unstale reproduce run` made"),
        ("--from", "--from is {folder}, expected a folder with .jsonl files that `unstale reproduce export` wrote"),
    ],
)
def test_without_results_the_command_says_what_it_expects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, message: str
) -> None:
    assert main.run(["reproduce", "claims", option, str(tmp_path)]) != 0
    assert message.format(folder=tmp_path) in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []


# The published page


def test_headline_claims_are_claims_of_presets_with_evidence_that_exists() -> None:
    every = headlines.load()
    claims = {(name, claim.text) for name, make in PRESETS.items() for claim in make().claims}
    assert every.keys() <= claims
    assert {PRESETS[name]().paper for name, _ in every} == {"FedHist", "WKAFL", "gradient inversion", "FedAR"}
    assert [file for one in every.values() for file in one.evidence if not (RESULTS / file).exists()] == []
    assert all((one.verdict is None) == (not one.why) for one in every.values())


def test_the_published_page_is_of_the_published_results() -> None:
    """When it fails: `unstale reproduce claims --from papers/results`."""
    presets = [make() for make in PRESETS.values()]
    stored = published.results(sorted(RESULTS.glob("*.jsonl")))
    every = rows(presets, comparisons(stored, presets), headlines.load())
    assert (RESULTS / "claims.md").read_text() == claims_page.text(every, RESULTS)
    table = claims_page.of_programs(every)
    assert (RESULTS / "claims.csv").read_text() == files.as_csv(table)
    assert len(set(table.rows)) == len(table.rows)  # a size of a claim's cells is there once
    # An explanation of another verdict is to be written anew.
    explained = [one for one in every if one.headline is not None and one.largest is not None]
    assert [one.headline.short for one in explained if one.headline.verdict != one.largest.verdict.answer] == []
