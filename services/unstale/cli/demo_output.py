"""What `unstale demo` prints: a table of the run that is live in a terminal, and texts before and after it."""

from collections.abc import Sequence
from textwrap import wrap
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from unstale.cli import printing
from unstale.cli.demo_processes import Events, next_message
from unstale.config import Settings
from unstale.metrics.named import two_of
from unstale.report.content import shortened
from unstale_client.net.clock import now_s

ROWS = 24  # of the live table, if the terminal is high enough; older rows scroll out
GAP = 2  # characters between two columns of the table
HEADINGS = (
    ("version", "version", 9, 8),
    ("", "", 9, 6),
    ("", "", 9, 6),
    ("staleness", "stale", 9, 5),
    ("updates/s", "upd./s", 9, 6),
    ("clients", "clients", 9, 7),
    ("seconds", "sec.", 9, 6),
)
"""Of each column: the heading, a shorter one for narrow terminals, and the least width with each."""
METRIC_COLUMNS = (1, 2)  # whose headings are names of metrics
METRIC_HEADING_MAX = 16  # characters
SHORT_HEADINGS = {"accuracy": "accur."}
LEFT_OUT_FIRST = (4, 3, 5, 2, 6)  # columns, in terminals that are too narrow for short headings


def introduction(settings: Settings, listening: dict[str, Any]) -> str:
    scenario = "" if settings.scenario.name is None else f", scenario {settings.scenario.name}"
    what = (
        f"app [bold]{settings.app}[/bold] on their own data"
        if settings.is_app
        else f"[bold]{settings.model.name}[/bold] on [bold]{settings.data.name}[/bold] "
        f"({settings.partition.name} partition)"
    )
    return (
        f"[bold]{settings.clients} clients[/bold] train {what};\n"
        f"policy {settings.policy.name}, trigger {settings.trigger.name}{scenario}.\n"
        f"{_attack(settings)}{_waits(settings)}"
        f"server {listening['address']}   watch it at http://{listening['http_address']}/\n"
    )


def _waits(settings: Settings) -> str:
    """Return a line on slow rounds; "" if no round waits for all clients."""
    if settings.trigger.name != "sync":
        return ""
    return f"Each round waits for all {settings.clients} clients: its slowest message determines its duration.\n"


def _attack(settings: Settings) -> str:
    """Return a line on the clients that attack; "" if all are honest."""
    if settings.attack.name is None:
        return ""

    from unstale.config.workspace import attack_of  # imports torch

    attack = attack_of(settings.attack, settings.clients, settings.seed)
    assert attack is not None
    return f"[bold]attack[/bold] {attack.description}.\n"


def watch(events: Events, console: Console) -> dict[str, Any]:
    """Show the run until it ends, and return its result. Raises as `check`."""
    view = _View(console)
    if not console.is_terminal:
        return _print_rows(events, console, view)
    with Live(get_renderable=lambda: view, console=console, refresh_per_second=8) as live:
        while (message := next_message(events))["event"] != "finished":
            view.take(message)
            live.refresh()
        view.finished = True
    return message


def _print_rows(events: Events, console: Console, view: "_View") -> dict[str, Any]:
    """Do the same without a terminal: print each row once."""
    while (message := next_message(events))["event"] != "finished":
        view.take(message)
        if message["event"] != "injected":
            is_first = len(view.rows) == 1
            console.print(_table(view.rows[-1:], view.names, width=console.width, heading=is_first))
    if view.injected:
        console.print(view.injected, style="italic dim", highlight=False)
    return message


class _View:
    """The live table of a run, with the remaining time below."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._starting = Spinner("dots", "the clients are starting ...")
        self._last: dict[str, Any] = {}
        self._last_s = 0.0
        self.rows: list[tuple[str, ...]] = []
        self.names: tuple[str, ...] = ()  # of the metrics in the rows
        self.injected = ""
        self.finished = False

    def take(self, message: dict[str, Any]) -> None:
        """Add a message of server or injector."""
        if message["event"] == "injected":
            self.injected = printing.injected(message)
        else:
            self._last, self._last_s = message, now_s()
            names = two_of(metrics_of(message)[1])
            if names != self.names:  # the first evaluations of clients replace metrics of the training
                self.names, self.rows = names, []
            self.rows.append(_row(message))

    def __rich__(self) -> RenderableType:
        if not self.rows:
            return self._starting
        texts = [self.injected, "" if self.finished else _left(self._last, now_s() - self._last_s)]
        caption = [line for text in texts for line in wrap(text, self._console.width)]
        shown = max(1, _rows_max(self._console) - len(caption))
        table = _table(self.rows[-shown:], self.names, width=self._console.width)
        return Group(table, *(Text(line, style="italic dim") for line in caption))


def _left(last: dict[str, Any], since_s: float) -> str:
    """Return the remaining time. last: the last progress; since_s: its age in seconds."""
    version, rounds, elapsed_s = last["version"], last["rounds"], last["elapsed_s"]
    if not version:
        return f"the first of {rounds} rounds are under way, for {since_s:.0f} s"
    left_s = max(0.0, elapsed_s / version * (rounds - version) - since_s)
    return f"a round takes {elapsed_s / version:.2f} s on average; about {left_s:.0f} s left"


def _rows_max(console: Console) -> int:
    """Return the number of rows that fit between the heading and the cursor."""
    return min(ROWS, max(1, console.height - 2)) if console.is_terminal else ROWS


def _table(rows: Sequence[Sequence[str]], names: Sequence[str], *, width: int = 80, heading: bool = True) -> Table:
    """Return a table of at most so many characters, without the columns that do not fit. names: of its metrics."""
    headings = _headings(names)
    every = [i for i in range(len(HEADINGS)) if i not in METRIC_COLUMNS[len(names) :]]
    widths = _widths(rows, headings, is_wide=True)
    is_wide = _width(every, widths) <= width
    if not is_wide:
        widths = _widths(rows, headings, is_wide=False)
    shown = _shown(every, widths, width)
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, show_header=heading)
    for i in shown:
        long, short, *_ = headings[i]
        table.add_column(long if is_wide else short, justify="right", min_width=widths[i], no_wrap=True)
    for row in rows:
        table.add_row(*(row[i] for i in shown))
    return table


def _shown(columns: Sequence[int], widths: Sequence[int], width: int) -> list[int]:
    """Return the columns that fit into so many characters."""
    shown = list(columns)
    for column in LEFT_OUT_FIRST:
        if column in shown and _width(shown, widths) > width:
            shown.remove(column)
    return shown


def _width(shown: Sequence[int], widths: Sequence[int]) -> int:
    """Return the characters of these columns, with the gaps between them."""
    return sum(widths[i] + GAP for i in shown) - GAP


def _headings(names: Sequence[str]) -> list[tuple[str, str, int, int]]:
    """Return `HEADINGS` with the names of metrics."""
    headings = list(HEADINGS)
    for column, name in zip(METRIC_COLUMNS, names, strict=False):
        short = SHORT_HEADINGS.get(name, shortened(name, headings[column][3]))
        headings[column] = (shortened(name, METRIC_HEADING_MAX), short, *headings[column][2:])
    return headings


def _widths(
    rows: Sequence[Sequence[str]], headings: Sequence[tuple[str, str, int, int]], *, is_wide: bool
) -> list[int]:
    """Return the width of each column."""
    chosen = [(long, least_wide) if is_wide else (short, least) for long, short, least_wide, least in headings]
    return [max(least, len(heading), *(len(row[i]) for row in rows)) for i, (heading, least) in enumerate(chosen)]


def metrics_of(message: dict[str, Any]) -> tuple[str, dict[str, float | None]]:
    """Return the metrics on the test set, or the means over the clients where there is none, and what they are of."""
    if message["metrics"]:
        return "test", message["metrics"]
    for of, key in (("clients", "client_metrics"), ("training", "training_metrics")):
        if message[key]:
            return of, {name: spread["mean"] for name, spread in message[key].items()}
    return "", {}


def _row(message: dict[str, Any]) -> tuple[str, ...]:
    metrics = metrics_of(message)[1]
    values = [printing.figure(metrics[name], ".4f") for name in two_of(metrics)]
    active = sum(message["clients"][state] for state in ("waiting", "working", "contributed", "unavailable"))
    return (
        f"{message['version']}/{message['rounds']}",
        *(*values, "", "")[:2],
        printing.figure(message["staleness_mean"], ".2f"),
        f"{message['updates_per_s']:,.0f}",
        str(active),
        f"{message['elapsed_s']:.1f}",
    )


def result(finished: dict[str, Any]) -> str:
    updates = ", ".join(f"{count} {name}" for name, count in finished["updates"].items())
    of, metrics = metrics_of(finished)
    name, value = next(iter(metrics.items()), ("", None))
    measured = f"{of} {name} {printing.figure(value, '.4f')}" if name else "not measured"
    missed = f"{escape(finished['missed'])}\n" if finished["missed"] else ""
    return (
        f"\n[bold]{measured}[/bold] after {finished['versions']} versions in "
        f"{finished['seconds']:.1f} s\n{missed}updates: {updates}\n"
        f"model digest {finished['model_digest']}\n\n"
        "Try next:\n"
        "  unstale demo --policy fedbuff           another weight for stale updates\n"
        "  unstale policies                        all policies\n"
        "  unstale demo --trigger sync             rounds that wait for all clients\n"
        "  unstale demo --scenario flaky           lost, duplicated and reordered messages\n"
        "  unstale simulate --clients 100 --k 10   the same code in virtual time\n"
        "  unstale server                          your own run; then, in other\n"
        "                                          terminals, unstale client --count 10"
    )
