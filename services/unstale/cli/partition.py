"""`unstale partition`: show the examples of each client."""

import json
from dataclasses import asdict
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unstale.cli.app import App
from unstale.cli.options import takes_settings
from unstale.cli.parameters import AsJson
from unstale.cli.tables import FEW, MOST
from unstale.config import Settings
from unstale.report.content import count

if TYPE_CHECKING:
    from rich.table import Table

    from unstale.training.partition import Indices, Spread, Summary

app = App(help="Show how the training set is partitioned.")

CLIENTS_SHOWN_MAX = 40  # a screen or two
WIDTH_MAX = 10_000  # characters; no screen is wider
SHADES = (
    ("░", "up to a quarter of the client's examples"),
    ("▒", "to a half"),
    ("▓", "to three quarters"),
    ("█", "to all"),
)

Png = Annotated[
    Path | None, typer.Option("--png", metavar="FILE", help="Draw the examples of all clients into this file.")
]


@app.command()
@takes_settings(
    *("data", "partition", "clients", "seed"),
    common=("clients", "seed", "data.name", "data.path", "partition.name", "partition.alpha"),
)
def show(settings: Settings, png: Png = None, as_json: AsJson = False) -> None:
    """Partition the training set, and show the number of examples of each class at each client."""
    from unstale.config.data import ClientData, read_dataset  # imports torch
    from unstale.training.datasets import labelled
    from unstale.training.partition import label_counts, summary

    data = labelled(read_dataset(settings.data))
    client_data = ClientData.of(settings, data)
    parameters, shares = dict(client_data.partition), client_data.train()
    labels_n = data.train.labels_N.numpy()
    name = settings.partition.name
    words = "".join(f", {key} {_spelled(value)}" for key, value in parameters.items() if value is not None)
    title = f"{name}{words}: {data.name} for {count(settings.clients, 'client')}, seed {settings.seed}"
    counts_NC = label_counts(shares, labels_n, data.classes)
    summarised = summary(shares, labels_n, data.classes)
    if png is not None:
        from unstale.cli.partition_plot import draw  # imports matplotlib

        draw(counts_NC, title, png)
    if as_json:
        clients = [
            {"client": client, "examples": sum(counts), "counts": counts}
            for client, counts in enumerate(counts_NC.tolist())
        ]
        facts = {"partition": {"name": name, **parameters}, "summary": asdict(summarised), "clients": clients}
        print(json.dumps(facts))
        return
    _print_table(title, counts_NC, summarised)
    if png is not None:
        print(f"{png}: written")


def _spelled(value: object) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def _print_table(title: str, counts_NC: "Indices", summary: "Summary") -> None:
    """Print a partition. counts_NC: examples of class c at client i."""
    from rich.console import Console
    from rich.measure import Measurement

    console = Console(highlight=False)
    console.print(title, markup=False, soft_wrap=True)
    first_NC = counts_NC[:CLIENTS_SHOWN_MAX]
    numbers = _table_of_numbers(first_NC, in_colour=console.color_system in ("256", "truecolor"))
    if Measurement.get(console, console.options.update(width=WIDTH_MAX), numbers).maximum <= console.width:
        console.print(numbers)
    else:
        console.print(_table_of_shades(first_NC))
        legend = ", ".join(f"{sign} {share}" for sign, share in SHADES)
        console.print(f"a sign for each class: {legend}", soft_wrap=True)
    more = len(counts_NC) - CLIENTS_SHOWN_MAX
    if more > 0:
        console.print(f"and {more:,} more clients, which --json and --png show")
    console.print(_summary(summary), markup=False, soft_wrap=True)


def _empty_table() -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("client", "examples"):
        table.add_column(name, justify="right")
    return table


def _table_of_numbers(counts_NC: "Indices", *, in_colour: bool) -> "Table":
    """Return a table with a column for each class. in_colour: darker for larger shares of the client's examples."""
    from rich.text import Text

    def cell(number: int, share: float) -> Text:
        if not number:
            return Text("·", style="dim")
        red, green, blue = (round(few + (most - few) * share) for few, most in zip(FEW, MOST, strict=True))
        colours = f"{'white' if share > 0.45 else 'black'} on rgb({red},{green},{blue})"
        return Text(f"{number:,}", style=colours if in_colour else "")

    table = _empty_table()
    for label in range(counts_NC.shape[1]):
        table.add_column(f"{label}", justify="right")
    for client, counts_C in enumerate(counts_NC.tolist()):
        total = sum(counts_C)
        table.add_row(f"{client}", f"{total:,}", *(cell(number, number / total) for number in counts_C))
    return table


def _table_of_shades(counts_NC: "Indices") -> "Table":
    """Return a table with a character for each class."""
    table = _empty_table()
    table.add_column(f"classes 0 to {counts_NC.shape[1] - 1}")
    signs = " " + "".join(sign for sign, _ in SHADES)
    for client, counts_C in enumerate(counts_NC.tolist()):
        total = sum(counts_C)
        shades = (signs[ceil(number / total * (len(signs) - 1))] for number in counts_C)
        table.add_row(f"{client}", f"{total:,}", "".join(shades))
    return table


def _summary(summary: "Summary") -> str:
    unused = summary.examples - summary.held
    text = f"{summary.held:,} of {summary.examples:,} examples are used"
    if unused or summary.shared:
        text += f", {unused:,} are unused, {summary.shared:,} belong to more than one client"
    return (
        f"{text}\n"
        f"examples per client: {_spread(summary.sizes)}\n"
        f"classes per client: {_spread(summary.classes)}\n"
        f"labels of a client against all: mean total variation distance {summary.distance:.3f} "
        "(0: clients are alike, near 1: each has labels of its own)"
    )


def _spread(spread: "Spread") -> str:
    return f"{spread.min:,} to {spread.max:,}, median {spread.median:,.10g}"
