"""`unstale demo`: a whole run on this machine, with server, injector and clients as processes."""

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from textwrap import wrap
from typing import Annotated, Any, Self, TypeAlias

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from unstale.cli import printing
from unstale.cli.options import COMMON_IN_RUNS, RUN, takes_settings
from unstale.config import Settings
from unstale.config.keys import PREFIX
from unstale.config.write import as_variables
from unstale.errors import UserError
from unstale.metrics.named import two_of
from unstale.report.content import shortened
from unstale_client.net.clock import now_s

SCENARIO = "lte"  # default of the demo
PROCESSES = 2  # client processes, with half of the clients each
ROWS = 24  # of the live table, if the terminal is high enough; older rows scroll out
LOSSY_HEARTBEAT_S = 0.5  # with a scenario; a lost message is noticed after one or two
GOODBYE_S = 30.0  # time for the next process to end after the result; then the others are terminated
AFTER_SERVER_S = 5.0  # the same when the server has ended: a client that missed the message never ends
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
KEYS = "keys"  # folder of the demo's keys
KILL_S = 10.0  # from termination of a process to its kill

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as a line of JSON; the table goes to stderr.")]


@takes_settings(*RUN, "attack", common=(*COMMON_IN_RUNS, "attack.name"))
def demo(settings: Settings, as_json: AsJson = False) -> None:
    """Train on this machine over loopback sockets: a server, two processes of clients, and an injector between them
    that simulates a network.

    The network is LTE by default; with --scenario null there is no injector.
    """
    if "name" not in settings.scenario.model_fields_set:
        scenario = settings.scenario.model_copy(update={"name": SCENARIO})
        settings = settings.model_copy(update={"scenario": scenario})
    events: Events = queue.SimpleQueue()
    printing.stop_on_signals(events.put)
    console = Console(stderr=as_json)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="unstale-demo-")))
        owners = _make_keys(folder / KEYS, settings)
        environment = _environment(_local(settings, folder))

        def start(*arguments: str) -> Process:
            command = [sys.executable, "-m", "unstale", *arguments, "--ends-with-input"]
            return stack.enter_context(Process(command, environment, events))

        server = start("server", "--json")
        listening = _next_message(events)
        console.print(_introduction(settings, listening), highlight=False, soft_wrap=True)
        address = listening["address"]
        if settings.scenario.name is not None:
            start("inject", "--upstream", address, "--json")
            address = _next_message(events)["address"]
        clients = [
            start("client", "--server", address, "--first", str(first), "--count", str(count), *key)
            for (first, count), key in zip(_shares(settings.clients), owners, strict=True)
        ]
        finished = _watch(events, console)
        if as_json:
            keys = ("test_accuracy", "versions", "seconds", "model_digest")
            facts = {key: finished[key] for key in keys}
            printing.line(json.dumps({**facts, "metrics": _metrics(finished)[1]}))
        else:
            console.print(_result(finished), highlight=False, soft_wrap=True)
        _wait_for_end([server, *clients], events)


class Process:
    """A child process. Leaving its context terminates it.

    `events` receives each line that it prints, and the process itself when it has ended. Its standard input is a pipe
    that ends with this process. Ctrl-C in a terminal reaches this process alone, which terminates the others.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], events: "Events") -> None:
        self._events = events
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed in __exit__)
        self._process = subprocess.Popen(  # noqa: S603  (our own program)
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
            process_group=0,
        )
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.code is None:
            self._process.terminate()
            self._thread.join(KILL_S)
        if self.code is None:
            self._process.kill()
        self._thread.join()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            assert stream is not None
            stream.close()

    @property
    def code(self) -> int | None:
        """The exit code, or None while it runs."""
        return self._process.returncode

    def check(self) -> None:
        """Raise its UserError, or print its errors and exit with 1, if it has failed."""
        if not self.code:
            return
        self._errors.seek(0)
        errors = self._errors.read()
        messages = [line for line in errors.splitlines() if line.startswith("unstale: ")]
        if self.code == 2 and messages:
            raise UserError(messages[-1].removeprefix("unstale: "))
        print(f"{errors}unstale: a process of the demo ended with code {self.code}", file=sys.stderr)
        raise typer.Exit(1)

    def _follow(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._events.put(line)
        self._process.wait()
        self._events.put(self)


Event: TypeAlias = str | Process | int
"""A line that a process printed, a process that has ended, or the number of a signal to this process."""
Events: TypeAlias = queue.SimpleQueue[Event]


def _next_message(events: Events) -> dict[str, Any]:
    """Return the next JSON line. Raises as `_check`."""
    while not isinstance(event := events.get(), str):
        _check(event)
    message: dict[str, Any] = json.loads(event)
    return message


def _check(event: Process | int) -> None:
    """Raise typer.Exit for a signal, and as `Process.check` for a process that failed."""
    if isinstance(event, int):
        raise typer.Exit(128 + event)
    event.check()


def _wait_for_end(processes: Sequence[Process], events: Events) -> None:
    """Wait a limited time for the processes to end, of which the server is the first. Raises as `_check`."""
    waits_until_s = now_s() + GOODBYE_S
    while any(process.code is None for process in processes):
        try:
            event = events.get(timeout=max(0.0, waits_until_s - now_s()))
        except queue.Empty:
            break
        if not isinstance(event, str):  # the injector still prints
            _check(event)
            waits_until_s = now_s() + (GOODBYE_S if processes[0].code is None else AFTER_SERVER_S)
    for process in processes:
        process.check()


def _environment(settings: Settings) -> dict[str, str]:
    """Return the environment of this process, with these settings as the only variables of unstale."""
    others = {name: text for name, text in os.environ.items() if not name.startswith(PREFIX)}
    return others | as_variables(settings)


def _make_keys(folder: Path, settings: Settings) -> list[list[str]]:
    """Make keys in a folder, and return the options of each client process."""
    from unstale.net import keygen
    from unstale.net.authorized_keys import INJECTOR, SERVER, ClientIds

    keygen.create(folder, SERVER, None)
    through: list[str] = []
    if settings.scenario.name is not None:
        keygen.create(folder, INJECTOR, ClientIds.parse("all", INJECTOR))
        through = ["--server-key", str(folder / f"{INJECTOR}.key")]
    owners = []
    for number, (first, count) in enumerate(_shares(settings.clients)):
        name = f"clients-{number}"
        keygen.create(folder, name, ClientIds.parse(f"{first}-{first + count - 1}", name))
        owners.append(["--key", str(folder / f"{name}.key_secret"), *through])
    return owners


def _local(settings: Settings, folder: Path) -> Settings:
    """Return settings with free ports, and with keys and files in a folder.

    With a scenario, heartbeats are frequent, because they detect lost messages.
    """
    ports = {"address": "tcp://127.0.0.1:0", "http_address": "127.0.0.1:0"}
    often = settings.scenario.name is not None and "heartbeat_s" not in settings.server.model_fields_set
    beat = {"heartbeat_s": LOSSY_HEARTBEAT_S} if often else {}
    keys = {"keys": str(folder / KEYS)}
    run = {} if "directory" in settings.run.model_fields_set else {"directory": str(folder / "run")}
    changed = {
        "run": settings.run.model_copy(update=run),
        "server": settings.server.model_copy(update={**ports, **keys, **beat}),
        "client": settings.client.model_copy(update={"directory": str(folder / "clients")}),
        "injector": settings.injector.model_copy(update={**ports, **keys}),
    }
    return settings.model_copy(update=changed)


def _shares(clients: int) -> list[tuple[int, int]]:
    """Return (first, count) of each client process."""
    bounds = [clients * i // PROCESSES for i in range(PROCESSES + 1)]
    return [(first, end - first) for first, end in pairwise(bounds) if end > first]


def _introduction(settings: Settings, listening: dict[str, Any]) -> str:
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


def _watch(events: Events, console: Console) -> dict[str, Any]:
    """Show the run until it ends, and return its result. Raises as `_check`."""
    view = _View(console)
    if not console.is_terminal:
        return _print_rows(events, console, view)
    with Live(get_renderable=lambda: view, console=console, refresh_per_second=8) as live:
        while (message := _next_message(events))["event"] != "finished":
            view.take(message)
            live.refresh()
        view.finished = True
    return message


def _print_rows(events: Events, console: Console, view: "_View") -> dict[str, Any]:
    """Do the same without a terminal: print each row once."""
    while (message := _next_message(events))["event"] != "finished":
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
            names = two_of(_metrics(message)[1])
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


def _metrics(message: dict[str, Any]) -> tuple[str, dict[str, float | None]]:
    """Return the metrics on the test set, or the means over the clients where there is none, and what they are of."""
    if message["metrics"]:
        return "test", message["metrics"]
    for of, key in (("clients", "client_metrics"), ("training", "training_metrics")):
        if message[key]:
            return of, {name: spread["mean"] for name, spread in message[key].items()}
    return "", {}


def _row(message: dict[str, Any]) -> tuple[str, ...]:
    metrics = _metrics(message)[1]
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


def _result(finished: dict[str, Any]) -> str:
    updates = ", ".join(f"{count} {name}" for name, count in finished["updates"].items())
    of, metrics = _metrics(finished)
    name, value = next(iter(metrics.items()), ("", None))
    result = f"{of} {name} {printing.figure(value, '.4f')}" if name else "not measured"
    missed = f"{escape(finished['missed'])}\n" if finished["missed"] else ""
    return (
        f"\n[bold]{result}[/bold] after {finished['versions']} versions in "
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
