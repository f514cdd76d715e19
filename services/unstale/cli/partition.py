"""`unstale partition`: who holds what."""

import json
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unstale.cli.app import App
from unstale.cli.options import takes_settings
from unstale.config import Settings
from unstale.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

    from unstale.training.partition import Indices, Spread, Summary

app = App(help="Look at how the training set is shared out.")

CLIENTS_SHOWN_MAX = 40  # a screen or two
WIDTH_MAX = 10_000  # characters; no screen is wider
FEW, MOST = (205, 222, 240), (8, 48, 107)  # blues, told apart by everybody and in grey, and from white
SHADES = (
    ("░", "up to a quarter of the client's examples"),
    ("▒", "to a half"),
    ("▓", "to three quarters"),
    ("█", "to all"),
)
COLUMNS = ("client", "examples")

AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON object, for programs.")]
Png = Annotated[
    Path | None, typer.Option("--png", metavar="FILE", help="Draw the shares of all clients into this file.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What there is to see. title: partition, settings and data. counts_NC: examples of class c at client i."""

    title: str
    partition: dict[str, Any]
    counts_NC: "Indices"
    summary: "Summary"


@app.callback()
def _options_of_the_group() -> None:
    pass


@app.command()
@takes_settings(
    *("data", "partition", "clients", "seed"),
    common=("clients", "seed", "data.name", "data.path", "partition.name", "partition.alpha"),
)
def show(settings: Settings, png: Png = None, as_json: AsJson = False) -> None:
    """Share the training set out, and show how many examples of which class each client holds."""
    shown = _look(settings)
    if png is not None:
        _draw(shown, png)
    if as_json:
        print(_as_json(shown))
        return
    _print_table(shown)
    if png is not None:
        print(f"{png}: written")


def _look(settings: Settings) -> Shown:
    from unstale.config import build  # imports torch
    from unstale.training.partition import label_counts, summary

    chosen = dict(build.partition(settings))
    data = build.dataset(settings)
    shares = build.client_partitions(settings, data)
    labels_n = data.labels_train_N.numpy()
    name, clients = settings.partition.name, settings.clients
    words = "".join(f", {key} {value:g}" for key, value in chosen.items() if value is not None)
    return Shown(
        title=f"{name}{words}: {data.name} for {clients:,} client{'s' * (clients > 1)}, seed {settings.seed}",
        partition={"name": name, **chosen},
        counts_NC=label_counts(shares, labels_n, data.classes),
        summary=summary(shares, labels_n, data.classes),
    )


def _draw(shown: Shown, file: Path) -> None:
    try:
        from unstale.cli.partition_plot import draw  # imports matplotlib
    except ModuleNotFoundError as error:
        raise UserError(
            "--png needs matplotlib, which is not installed; get it with: pip install matplotlib"
        ) from error
    try:
        draw(shown.counts_NC, shown.title, file)
    except OSError as error:
        raise UserError(f"cannot write {file}: {(error.strerror or str(error)).lower()}") from None


def _as_json(shown: Shown) -> str:
    clients = [
        {"client": client, "examples": sum(counts), "counts": counts}
        for client, counts in enumerate(shown.counts_NC.tolist())
    ]
    return json.dumps({"partition": shown.partition, "summary": asdict(shown.summary), "clients": clients})


# --- for people ---


def _print_table(shown: Shown) -> None:
    from rich.console import Console
    from rich.measure import Measurement

    console = Console(highlight=False)
    console.print(shown.title, markup=False, soft_wrap=True)
    first_NC = shown.counts_NC[:CLIENTS_SHOWN_MAX]
    numbers = _table_of_numbers(first_NC, in_colour=console.color_system in ("256", "truecolor"))
    if Measurement.get(console, console.options.update(width=WIDTH_MAX), numbers).maximum <= console.width:
        console.print(numbers)
    else:
        console.print(_table_of_shades(first_NC))
        console.print(
            "a sign for each class: " + ", ".join(f"{sign} {of}" for sign, of in SHADES), soft_wrap=True
        )
    more = len(shown.counts_NC) - CLIENTS_SHOWN_MAX
    if more > 0:
        console.print(f"and {more:,} more clients, which --json and --png show")
    console.print(_sentences(shown.summary), markup=False, soft_wrap=True)


def _empty_table() -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, justify="right")
    return table


def _table_of_numbers(counts_NC: "Indices", *, in_colour: bool) -> "Table":
    """A column for each class. in_colour: the larger its share of the client's examples, the darker."""
    from rich.text import Text

    def cell(count: int, share: float) -> Text:
        if not count:
            return Text("·", style="dim")
        red, green, blue = (round(few + (most - few) * share) for few, most in zip(FEW, MOST, strict=True))
        colours = f"{'white' if share > 0.45 else 'black'} on rgb({red},{green},{blue})"
        return Text(f"{count:,}", style=colours if in_colour else "")

    table = _empty_table()
    for label in range(counts_NC.shape[1]):
        table.add_column(f"{label}", justify="right")
    for client, counts_C in enumerate(counts_NC.tolist()):
        held = sum(counts_C)
        table.add_row(f"{client}", f"{held:,}", *(cell(count, count / held) for count in counts_C))
    return table


def _table_of_shades(counts_NC: "Indices") -> "Table":
    """One sign for each class."""
    table = _empty_table()
    table.add_column(f"classes 0 to {counts_NC.shape[1] - 1}")
    signs = " " + "".join(sign for sign, _ in SHADES)
    for client, counts_C in enumerate(counts_NC.tolist()):
        held = sum(counts_C)
        shades = (signs[ceil(count / held * (len(signs) - 1))] for count in counts_C)
        table.add_row(f"{client}", f"{held:,}", "".join(shades))
    return table


def _sentences(summary: "Summary") -> str:
    nobodys = summary.examples - summary.held
    held = f"{summary.held:,} of {summary.examples:,} examples are held"
    if nobodys or summary.shared:
        held += f", {nobodys:,} are nobody's, {summary.shared:,} are held by more than one client"
    return (
        f"{held}\n"
        f"examples a client: {_spread(summary.sizes)}\n"
        f"classes a client: {_spread(summary.classes)}\n"
        f"labels of a client against all: mean total variation distance {summary.distance:.3f} "
        "(0: clients are alike, near 1: each has labels of its own)"
    )


def _spread(spread: "Spread") -> str:
    return f"{spread.min:,} to {spread.max:,}, median {spread.median:,.10g}"
