"""Every output has the numbers of the comparison and marks the missing ones."""

import re
from pathlib import Path

import pytest

from helpers.reproduced import comparison
from helpers.written import Page, Table, rows_of_csv, tables_of_markdown
from unstale.report import page
from unstale_papers import output
from unstale_papers.comparison import Comparison, Entry
from unstale_papers.output import document, markdown
from unstale_papers.output.report_context import ReportContext, difference, printed
from unstale_papers.presets.registry import PRESETS, make
from unstale_papers.scale import Scale
from unstale_papers.verdicts import verdicts

ABOUT = ("Computed on a machine of two cores.",)
LOOKED_AT = ("fh-t1", "fh-t2", "wk-t3", "gi-t3", "gi-f11", "ar-t3", "ar-f2", "gi-f4", "ar-f1")
Key = tuple[str, str]
AGAINST_FEDAR = ("p against FedAR", "p over seeds against FedAR", "ahead of FedAR")


@pytest.fixture(scope="module", params=LOOKED_AT)
def found(request: pytest.FixtureRequest) -> Comparison:
    return comparison(request.param, range(2))


def shown(entry: Entry) -> str:
    """The text of a cell with a published number, by hand."""
    return " / ".join((printed(entry) or "–", measured(entry), difference(entry) or "–"))


def measured(entry: Entry) -> str:
    """The measured text for two seeds, one possibly without a number; none for FedAR against itself."""
    if is_itself(entry):
        return "–"
    if entry.spread is None:
        return entry.text or "no number"
    return entry.text if entry.spread.n == 2 or entry.missed else f"{entry.text} (1 of 2 seeds)"


def is_itself(entry: Entry) -> bool:
    """Whether the entry compares FedAR with FedAR."""
    return entry.measure.name in AGAINST_FEDAR and entry.cell.labels["method"] == "FedAR"


def numbers(tables: dict[str, Table], found: Comparison) -> dict[Key, str]:
    """Cells of the number tables, by cell name and measure."""
    preset = found.preset
    read: dict[Key, str] = {}
    for caption, (heads, *rows) in tables.items():
        if heads[0] != ", ".join(preset.rows):
            continue
        for cell in preset.cells:
            for name in preset.measures:
                heading = found.entries[cell.name, name].measure.heading
                place = _place(cell.labels, preset.columns, heading, caption, heads, preset.method)
                row = [row for row in rows if row[0] == ", ".join(cell.labels.get(axis, "") for axis in preset.rows)]
                if place is not None and row:
                    read[cell.name, name] = row[0][place]
    return read


def _place(
    labels: object, columns: tuple[str, ...], heading: str, caption: str, heads: list[str], method: str
) -> int | None:
    """Position of the column of a cell's measure; None where it is in another table."""
    assert isinstance(labels, dict)
    if not columns:
        return heads.index(heading)
    of, rest = re.split(r"\. (?:Each cell has|The paper prints)", caption)[0], columns
    if f": {heading}, {columns[0]} {labels[columns[0]]}" in of and of.endswith(labels[columns[0]]):
        rest = columns[1:]
    elif not of.endswith(f": {heading}"):
        return None
    head = ", ".join(labels[axis] if axis == method else f"{axis} {labels[axis]}" for axis in rest)
    return heads.index(head) if head in heads else None


def test_page_and_markdown_show_every_number_in_its_cell(found: Comparison) -> None:
    made = document.document(ReportContext(comparison=found, scale=Scale()))
    of_page = numbers(Page(page.html(made.report)).tables, found)
    of_text = numbers(tables_of_markdown(markdown.text(made)), found)
    is_printed = {name for cell in found.preset.cells for name in cell.published}
    # An empty column is left out.
    entries = {key: entry for key, entry in found.entries.items() if key[1] in is_printed or not is_itself(entry)}
    assert of_page.keys() == of_text.keys() == entries.keys()
    for key, entry in entries.items():
        expected = shown(entry) if key[1] in is_printed else measured(entry)
        assert of_page[key] == expected, key
        assert of_text[key] == expected, key


def test_csv_has_every_number_exactly(found: Comparison, tmp_path: Path) -> None:
    preset = found.preset
    context = ReportContext(comparison=found, scale=Scale())
    made = document.document(context)
    file = tmp_path / "numbers.csv"
    file.write_text(output.files.as_csv(made.of_programs[0]), encoding="utf-8")
    rows = rows_of_csv(file)
    assert len(rows) == len(preset.cells) * len(preset.measures)
    axes = (*preset.rows, *preset.columns)
    by_key = {(tuple(row[axis] for axis in axes), row["measure"]): row for row in rows}
    for (name, of), entry in found.entries.items():
        row = by_key[tuple(entry.cell.labels.get(axis, "") for axis in axes), of]
        texts = [row[column] for column in ("published", "mean", "std", "low", "high", "difference")]
        spread, number = entry.spread, entry.published
        known = (spread.mean, spread.std, spread.low, spread.high) if spread is not None else (None,) * 4
        expected = (None if number is None else number.value, *known, entry.difference)
        assert [float(text) if text else None for text in texts] == list(expected), name
        assert row["published_text"] == ("" if number is None else number.text)


@pytest.mark.parametrize("name", PRESETS)
def test_every_published_number_is_shown_before_the_first_run(name: str) -> None:
    preset = make(name)
    made = document.document(ReportContext(comparison=Comparison(preset=preset, records={}), scale=Scale()))
    texts = [row[made.of_programs[0].columns.index(_column(made, "published_text"))] for row in _rows(made)]
    published = [number.text for cell in preset.cells for number in cell.published.values()]
    assert sorted(text for text in texts if isinstance(text, str)) == sorted(published)
    read = numbers(tables_of_markdown(markdown.text(made)), Comparison(preset=preset, records={}))
    for cell in preset.cells:
        for of in cell.published:
            first, here, apart = read[cell.name, of].split(" / ")
            assert first and first != "–"
            assert (here, apart) == ("not run", "–")


def _column(made: document.Document, name: str) -> object:
    return next(column for column in made.of_programs[0].columns if column.name == name)


def _rows(made: document.Document) -> list[list[object]]:
    return [list(row) for row in made.of_programs[0].rows]


def test_printed_shares_are_shown_in_per_cent() -> None:
    """WKAFL prints 0.9728, FedHist 57.19, gradient inversion 72.6: all of them in a column of per cent."""
    entries = {name: comparison(name, range(1)).entries.values() for name in ("wk-t3", "fh-t1", "gi-t3")}
    texts = {name: {printed(entry) for entry in of} for name, of in entries.items()}
    assert {"97.28", "0.0060"} <= texts["wk-t3"]
    assert "57.19" in texts["fh-t1"]
    assert {"72.6", "720"} <= texts["gi-t3"]


def test_p_values_have_no_difference() -> None:
    entries = comparison("ar-f2", range(2)).entries.values()
    tests = [entry for entry in entries if entry.measure.of_all is not None and entry.difference is not None]
    assert tests and not any(difference(entry) for entry in tests)


def test_a_single_printed_method_has_no_ranking() -> None:
    """Fig. 2 prints accuracies and losses only of FedAR."""
    made = document.document(ReportContext(comparison=comparison("ar-f2", range(1)), scale=Scale()))
    (orders,) = (table for table in made.report.tables if table.name == "ar-f2-orders")
    assert {row[2] for row in orders.rows} == {None}
    assert len(orders.of_page[1]) == len(orders.rows) == 12


# Missing results

MOON, REFL = "beta=0.3 method=MOON", "beta=IID method=REFL"
TRACEBACK = "Traceback (most recent call last):\n  File <a>\nZeroDivisionError: as | instructed\n"


@pytest.fixture(scope="module")
def partial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """fh-t2 with three seeds; MOON without one, REFL with two of which one failed."""
    folder = tmp_path_factory.mktemp("partial") / "out"
    left_out = [*((MOON, seed) for seed in range(3)), (REFL, 1), (REFL, 2)]
    output.write(
        comparison("fh-t2", range(3), left_out=left_out),
        folder,
        scale=Scale.of(0.25),
        about=ABOUT,
        data={"cifar10": "mine.npz", "mnist": "of no use.npz"},
        seeds=range(3),
        failures={(REFL, 1): TRACEBACK},
    )
    return folder


def test_missing_cells_and_seeds_are_marked_as_missing_and_not_zero(partial: Path) -> None:
    tables = tables_of_markdown((partial / "fh-t2.md").read_text(encoding="utf-8"))
    accuracy = next(rows for caption, rows in tables.items() if ": final accuracy, %." in caption)
    by_method = {row[0]: row[1:] for row in accuracy}
    assert by_method["MOON"][0] == "41.59 / not run / –"
    assert "(1 of 3 seeds)" in by_method["REFL"][2]
    assert "(" not in by_method["FedAvg"][0]
    seeds = rows_of_csv(partial / "fh-t2-seeds.csv")
    refl = [row for row in seeds if row["beta"] == "IID" and row["method"] == "REFL"]
    assert [(row["seed"], bool(row["value"]), row["why_not"]) for row in refl[:3]] == [
        ("0", True, ""),
        ("1", False, "ZeroDivisionError: as | instructed"),
        ("2", False, "not run"),
    ]
    rows = rows_of_csv(partial / "fh-t2.csv")
    means = [row["mean"] for row in rows if row["method"] == "MOON" and row["beta"] == "0.3"]
    assert means == [""] * len(make("fh-t2").measures)


def test_failed_and_incomplete_results_are_listed_at_the_top(partial: Path) -> None:
    for name in ("fh-t2.md", "fh-t2.html"):
        top = (partial / name).read_text(encoding="utf-8").replace("\\", "").partition("Published and measured")[0]
        top += (partial / name).read_text(encoding="utf-8").replace("\\", "")[:20_000]
        assert "67 of 72 runs (cells times seeds) are done, 1 failed, 4 were not run" in top
        assert f"{REFL} with seed 1: ZeroDivisionError: as | instructed" in top
        assert ABOUT[0] in top


def test_scale_and_substituted_data_are_stated_at_the_top_and_over_every_computed_table(partial: Path) -> None:
    text = (partial / "fh-t2.md").read_text(encoding="utf-8")
    for captions in (tables_of_markdown(text), Page((partial / "fh-t2.html").read_text(encoding="utf-8")).tables):
        assert len(captions) == 5 + len(make("fh-t2").measures)
        for caption in captions:
            if caption != "Where settings are from":
                assert "Not full size: rounds x 0.25, clients x 0.5, data x 0.5." in caption
                assert "cifar10 is read from mine.npz." in caption
    assert "of no use" not in text
    rows = rows_of_csv(partial / "fh-t2.csv")
    assert {row["scale_rounds"] for row in rows} == {"0.25"}
    assert {row["data_replaced"] for row in rows} == {"cifar10 is read from mine.npz."}


def test_limits_of_a_smaller_scale_are_stated_beside_the_scale() -> None:
    def top(name: str, scale: Scale) -> tuple[str, str]:
        context = ReportContext(comparison=Comparison(preset=make(name), records={}), scale=scale)
        return document.document(context).report.notes[0], context.size

    first, caption = top("fh-t2", Scale.of(0.01))
    assert "A round has 1 update here, 10 at full size" in first and "iterations" not in first + caption
    assert "accuracies are of a shorter training, less data and fewer clients." in first
    first, caption = top("gi-t3", Scale(rounds=0.03))
    assert "Who is 40 rounds late is so after 40 rounds, and these runs have 24" in first
    assert caption == "Not full size: rounds x 0.03."
    assert "accuracies are of a shorter training." in first
    first, caption = top("gi-t3", Scale(iterations=0.02))
    assert caption == "Not full size: iterations x 0.02."
    assert "Inversions have fewer iterations than is published" in first
    assert "shorter training" not in first
    assert top("fh-t2", Scale(iterations=0.02)) == (
        "Full size: rounds, clients and data as the settings below have them.",
        "",
    )


def test_own_choices_are_marked_in_every_output(partial: Path) -> None:
    text = (partial / "fh-t2.md").read_text(encoding="utf-8")
    for tables in (tables_of_markdown(text), Page((partial / "fh-t2.html").read_text(encoding="utf-8")).tables):
        marks = {row[0]: row[2] for row in tables["Where settings are from"]}
        assert marks["training.steps"] == "ours, [P]"
        assert marks["trigger.name"] == "published"
        assert marks["REFL beta"] == "ours, R:REFL"
    row = rows_of_csv(partial / "fh-t2.csv")[0]["not_published"].split("; ")
    assert "training.steps [P]" in row and "trigger.name paper" not in row
    assert len(row) == sum(source.is_ours for source in make("fh-t2").sources)


def test_settings_are_the_computed_ones_beside_those_of_full_size(partial: Path) -> None:
    rows = {row["key"]: row for row in rows_of_csv(partial / "fh-t2-settings.csv")}
    assert (rows["clients"]["value"], rows["clients"]["full_size"]) == ("500", "1000")
    assert (rows["rounds"]["value"], rows["rounds"]["full_size"]) == ("1250", "5000")
    assert (rows["training.learning_rate"]["value"], rows["training.learning_rate"]["full_size"]) == ("0.01", "")


def test_the_same_numbers_give_the_same_bytes(partial: Path, tmp_path: Path) -> None:
    written = [
        output.write(comparison("gi-f4", range(1)), tmp_path / name, scale=Scale(), about=ABOUT) for name in "ab"
    ]
    for one, other in zip(*written, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name


# The list of all


def test_the_index_counts_verdicts_and_links_to_pages(tmp_path: Path) -> None:
    made = [comparison("fh-t2", range(2)), comparison("ar-f1", range(2))]
    output.index(made, tmp_path, scales={"fh-t2": Scale.of(0.25)}, seeds=range(3))
    read = Page((tmp_path / "index.html").read_text(encoding="utf-8"))
    (table,) = read.tables.values()
    heads, *rows = table
    answers = [verdict.answer for verdict in verdicts(made[0])]
    by_head = dict(zip(heads, rows[0], strict=True))
    assert (by_head["seeds"], by_head["runs done"], by_head["of"]) == ("3", "48", "72")
    assert [by_head[head] for head in ("claims that hold", "do not hold", "cannot be told")] == [
        str(answers.count(one)) for one in ("holds", "does not hold", "cannot be told")
    ]
    assert by_head["size"] == "rounds x 0.25, clients x 0.5, data x 0.5"
    links = [attributes["href"] for attributes in read.all("a")]
    assert {"fh-t2.html", "ar-f1.html"} <= set(links)
    assert "](fh-t2.md)" in (tmp_path / "index.md").read_text(encoding="utf-8")
