"""One preset: shared and differing settings of its cells, their sources, and the published numbers."""

import json
from collections.abc import Mapping, Sequence
from shutil import get_terminal_size
from textwrap import fill
from typing import Any

from unstale.cli.tables import print_table
from unstale.config.write import as_yaml
from unstale_papers.choose import common, data_of, data_sets, differences
from unstale_papers.jobs import values
from unstale_papers.preset import Cell, Preset


def show_json(preset: Preset) -> None:
    """Print the preset as JSON."""
    print(json.dumps(_facts(preset), indent=2))


def show(preset: Preset) -> None:
    """Print the preset as text."""
    cells = preset.cells
    print(f"{preset.name}: {preset.paper}, {preset.item}: {preset.title}")
    print(f"  {len(cells)} cells on {data_of(cells)}; measured: {', '.join(preset.measures)}")
    print("\nIn all cells:")
    _print_wrapped(", ".join(_spelled(common(cells))))
    for one in differences(cells):
        print(f"\nBy {' and '.join(one.axes)}:")
        for labels, found in one.rows.items():
            if found:
                _print_wrapped(f"{' '.join(labels)}: {', '.join(_spelled(found))}")
    print("\nWhere settings are from; what the paper does not say is ours, with what it is from:")
    for source in preset.sources:
        tag = f"ours, {source.tag}" if source.is_ours else source.tag
        _print_wrapped(f"{source.key}: {source.value} ({tag}){'. ' * bool(source.why)}{source.why}")
    _print_published(preset)
    _print_rest(preset)


def _print_published(preset: Preset) -> None:
    """Print a table for each published measure, split by the first column axis to limit its width."""
    for measure in dict.fromkeys(measure for cell in preset.cells for measure in cell.published):
        by_part: dict[tuple[str, ...], list[Cell]] = {}
        for cell in preset.cells:
            if measure in cell.published:
                by_part.setdefault(_of(cell, preset.columns[:-1]), []).append(cell)
        for part, cells in by_part.items():
            print(f"\nPublished {' '.join(filter(None, (f'{measure}:', *part)))}")
            _print_one_table(preset, measure, cells)


def _print_one_table(preset: Preset, measure: str, cells: Sequence[Cell]) -> None:
    last = preset.columns[-1:]
    columns = list(dict.fromkeys(_of(cell, last) for cell in cells))
    table: dict[tuple[str, ...], dict[tuple[str, ...], str]] = {}
    for cell in cells:
        table.setdefault(_of(cell, preset.rows), {})[_of(cell, last)] = cell.published[measure].text
    headings = (*preset.rows, *("".join(column) for column in columns))
    rows = [(*row, *(found.get(column, "") for column in columns)) for row, found in table.items()]
    print_table(headings, rows, lines=False)


def _print_rest(preset: Preset) -> None:
    for heading, sentences in (
        ("What is claimed of it:", [claim.text for claim in preset.claims]),
        ("Not computed here:", preset.missing),
    ):
        if sentences:
            print(f"\n{heading}")
            for sentence in sentences:
                _print_wrapped(sentence)


def _of(cell: Cell, axes: Sequence[str]) -> tuple[str, ...]:
    return tuple(cell.labels.get(axis, "") for axis in axes)


def _spelled(found: Mapping[str, Any]) -> list[str]:
    return [f"{key} {value if isinstance(value, str) else as_yaml(value)}" for key, value in found.items()]


def _print_wrapped(text: str) -> None:
    """Print the text wrapped at the terminal's width, with further lines indented."""
    width = get_terminal_size().columns
    print(fill(text, width, initial_indent="  ", subsequent_indent="      ", break_on_hyphens=False))


def _facts(preset: Preset) -> dict[str, Any]:
    return {
        "name": preset.name,
        "paper": preset.paper,
        "item": preset.item,
        "title": preset.title,
        "data": data_sets(preset.cells),
        "measures": list(preset.measures),
        "cells": [
            {
                "labels": dict(cell.labels),
                "measurement": cell.measurement,
                "options": dict(cell.options),
                "scenario": cell.scenario,
                "settings": values(cell.settings),
                "published": {
                    measure: {"value": number.value, "text": number.text} for measure, number in cell.published.items()
                },
            }
            for cell in preset.cells
        ],
        "sources": [
            {"key": one.key, "value": one.value, "tag": one.tag, "ours": one.is_ours, "why": one.why}
            for one in preset.sources
        ],
        "claims": [claim.text for claim in preset.claims],
        "missing": list(preset.missing),
    }
