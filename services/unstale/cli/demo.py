"""`unstale demo`: a whole run on this machine, server, injector and clients as processes of their own, watched live."""

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
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from unstale.cli import printing
from unstale.cli.options import COMMON_IN_RUNS, RUN, takes_settings
from unstale.config import Settings
from unstale.config.keys import PREFIX
from unstale.config.write import as_variables
from unstale.errors import UserError
from unstale.net.clock import now_s

SCENARIO = "lte"  # that the injector plays where none is named
PROCESSES = 2  # client processes, with half of the clients each
ROWS = 24  # of the live table, where there is room; older rows scroll out
LOSSY_HEARTBEAT_S = 0.5  # with a scenario; what was lost is found after one or two
GOODBYE_S = 30.0  # when no process ends for so long after the result, those that are left are ended
AFTER_SERVER_S = 5.0  # as long when the server has ended: a client that has not heard of the end never will
GAP = 2  # characters between two columns of the table
HEADINGS = (
    ("version", "version", 9, 8),
    ("accuracy", "accur.", 9, 6),
    ("loss", "loss", 9, 6),
    ("staleness", "stale", 9, 5),
    ("updates/s", "upd./s", 9, 6),
    ("clients", "clients", 9, 7),
    ("seconds", "sec.", 9, 6),
)
"""Of the table: the heading, a shorter one for narrow terminals, and the least width of a column under each."""
LEFT_OUT_FIRST = (4, 3, 5, 2, 6)  # columns, where a terminal is too narrow for short headings, too
KEYS = "keys"  # of the demo, in its folder
KILL_S = 10.0  # a process that was told to end and is there so long after it is killed

AsJson = Annotated[
    bool, typer.Option("--json", help="Print one last line of JSON; the table goes to stderr.")
]


@takes_settings(*RUN, "attack", common=(*COMMON_IN_RUNS, "attack.name"))
def demo(settings: Settings, as_json: AsJson = False) -> None:
    """Train on this machine over loopback sockets: a server, two processes of clients, an injector between them that
    plays a network, and what they achieve.

    The network is LTE where --scenario names no other one; with --scenario null there is no injector.
    """
    if "name" not in settings.scenario.model_fields_set:
        settings = settings.model_copy(
            update={"scenario": settings.scenario.model_copy(update={"name": SCENARIO})}
        )
    events: Events = queue.SimpleQueue()
    printing.stop_on_signals(events.put)
    console = Console(stderr=as_json)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="unstale-demo-")))
        owners = _make_keys(folder / KEYS, settings)
        environment = _environment(_for_here(settings, folder))

        def start(*arguments: str) -> Process:
            command = [sys.executable, "-m", "unstale", *arguments, "--ends-with-input"]
            return stack.enter_context(Process(command, environment, events))

        server = start("server", "--json")
        listening = _next_fact(events)
        console.print(_introduction(settings, listening), highlight=False, soft_wrap=True)
        address = listening["address"]
        if settings.scenario.name is not None:
            start("inject", "--upstream", address, "--json")
            address = _next_fact(events)["address"]
        clients = [
            start("client", "--server", address, "--first", str(first), "--count", str(count), *key)
            for (first, count), key in zip(_shares(settings.clients), owners, strict=True)
        ]
        finished = _watch(events, console)
        if as_json:
            last = ("test_accuracy", "versions", "seconds", "model_digest")
            printing.line(json.dumps({key: finished[key] for key in last}))
        else:
            console.print(_farewell(finished), highlight=False, soft_wrap=True)
        _see_off([server, *clients], events)


class Process:
    """A command running beside this one. Ended, if it still runs, when its context is left.

    events: where every line that it prints goes, and the process itself when it has ended. Its standard input is a
    pipe that ends with this process. Ctrl-C in a terminal reaches this process alone, which ends the others.
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
        """The exit code; None while it runs."""
        return self._process.returncode

    def check(self) -> None:
        """If it has come to a bad end, raise UserError with its sentence, or tell all that it said and exit with 1."""
        if not self.code:
            return
        self._errors.seek(0)
        said = self._errors.read()
        sentences = [line for line in said.splitlines() if line.startswith("unstale: ")]
        if self.code == 2 and sentences:
            raise UserError(sentences[-1].removeprefix("unstale: "))
        print(f"{said}unstale: a process of the demo ended with code {self.code}", file=sys.stderr)
        raise typer.Exit(1)

    def _follow(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._events.put(line)
        self._process.wait()
        self._events.put(self)


Event: TypeAlias = str | Process | int
"""A line that the server printed, a process that has ended, or the number of a signal to this process."""
Events: TypeAlias = queue.SimpleQueue[Event]


def _next_fact(events: Events) -> dict[str, Any]:
    """The next that the server says. Raises as `_go_on_after`."""
    while not isinstance(event := events.get(), str):
        _go_on_after(event)
    fact: dict[str, Any] = json.loads(event)
    return fact


def _go_on_after(event: Process | int) -> None:
    """Raise typer.Exit after a signal, and as `Process.check` after a bad end."""
    if isinstance(event, int):
        raise typer.Exit(128 + event)
    event.check()


def _see_off(processes: Sequence[Process], events: Events) -> None:
    """Wait for the processes, of which the server is the first, to end, but not for ever. Raises as `_go_on_after`."""
    waits_until_s = now_s() + GOODBYE_S
    while any(process.code is None for process in processes):
        try:
            event = events.get(timeout=max(0.0, waits_until_s - now_s()))
        except queue.Empty:
            break  # there is a result, and no reason to wait longer for who is left
        if not isinstance(event, str):  # the injector goes on telling
            _go_on_after(event)
            waits_until_s = now_s() + (GOODBYE_S if processes[0].code is None else AFTER_SERVER_S)
    for process in processes:
        process.check()


def _environment(settings: Settings) -> dict[str, str]:
    """This process's own, but of ours these settings alone."""
    others = {name: text for name, text in os.environ.items() if not name.startswith(PREFIX)}
    return others | as_variables(settings)


def _make_keys(folder: Path, settings: Settings) -> list[list[str]]:
    """Keys that are thrown away with their folder; the options with which each client process shows its own."""
    from unstale.net import keygen
    from unstale.net.keys import INJECTOR, SERVER, ClientIds

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


def _for_here(settings: Settings, folder: Path) -> Settings:
    """On ports that are free; with the keys of a folder, where is kept, too, whatever is kept. With a scenario,
    heartbeats come often, because they find what was lost."""
    ports = {"address": "tcp://127.0.0.1:0", "http_address": "127.0.0.1:0"}
    often = settings.scenario.name is not None and "heartbeat_s" not in settings.server.model_fields_set
    beat = {"heartbeat_s": LOSSY_HEARTBEAT_S} if often else {}
    keys = {"keys": str(folder / KEYS)}
    kept_at = {} if "directory" in settings.run.model_fields_set else {"directory": str(folder / "run")}
    changed = {
        "run": settings.run.model_copy(update=kept_at),
        "server": settings.server.model_copy(update={**ports, **keys, **beat}),
        "client": settings.client.model_copy(update={"directory": str(folder / "clients")}),
        "injector": settings.injector.model_copy(update={**ports, **keys}),
    }
    return settings.model_copy(update=changed)


def _shares(clients: int) -> list[tuple[int, int]]:
    """(first, count) of each client process."""
    bounds = [clients * i // PROCESSES for i in range(PROCESSES + 1)]
    return [(first, end - first) for first, end in pairwise(bounds) if end > first]


def _introduction(settings: Settings, listening: dict[str, Any]) -> str:
    scenario = "" if settings.scenario.name is None else f", scenario {settings.scenario.name}"
    return (
        f"[bold]{settings.clients} clients[/bold] train [bold]{settings.model.name}[/bold] on "
        f"[bold]{settings.data.name}[/bold] ({settings.partition.name} partition);\n"
        f"policy {settings.policy.name}, trigger {settings.trigger.name}{scenario}.\n"
        f"{_attack(settings)}{_waits(settings)}"
        f"server {listening['address']}   watch it at http://{listening['http_address']}/\n"
    )


def _waits(settings: Settings) -> str:
    """A line on what makes rounds long; "" where no round waits for everybody."""
    if settings.trigger.name != "sync":
        return ""
    return (
        f"Each round waits for all {settings.clients} clients: the slowest message of the round decides how long "
        "it takes.\n"
    )


def _attack(settings: Settings) -> str:
    """A line on the clients that attack; "" where all are honest."""
    if settings.attack.name is None:
        return ""
    from unstale.config import build  # imports torch

    attack = build.attack(settings)
    assert attack is not None
    return f"[bold]attack[/bold] {attack.description}.\n"


def _watch(events: Events, console: Console) -> dict[str, Any]:
    """Show the run until it ends; what the server said last. Raises as `_go_on_after`."""
    view = _View(console)
    if not console.is_terminal:
        return _print_rows(events, console, view)
    with Live(get_renderable=lambda: view, console=console, refresh_per_second=8) as live:
        while (fact := _next_fact(events))["event"] != "finished":
            view.take(fact)
            live.refresh()
        view.finished = True
    return fact


def _print_rows(events: Events, console: Console, view: "_View") -> dict[str, Any]:
    """As `_watch`, where no line can be written anew: each row is printed once, when it comes."""
    view.finished = True  # no estimates, which would be printed once and then be wrong
    while (fact := _next_fact(events))["event"] != "finished":
        view.take(fact)
        if fact["event"] != "injected":
            is_first = len(view.rows) == 1
            console.print(_table(view.rows[-1:], width=console.width, heading=is_first))
    if view.injected:
        console.print(view.injected, style="italic dim", highlight=False)
    return fact


class _View:
    """The table of a run, and under it how long the run takes still, counted down while it waits."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._starting = Spinner("dots", "the clients are starting ...")
        self._last: dict[str, Any] = {}
        self._last_s = 0.0
        self.rows: list[tuple[str, ...]] = []
        self.injected = ""
        self.finished = False

    def take(self, fact: dict[str, Any]) -> None:
        """What server or injector said."""
        if fact["event"] == "injected":
            self.injected = printing.injected(fact)
        else:
            self._last, self._last_s = fact, now_s()
            self.rows.append(_row(fact))

    def __rich__(self) -> RenderableType:
        if not self.rows:
            return self._starting
        texts = [self.injected, "" if self.finished else _left(self._last, now_s() - self._last_s)]
        caption = [line for text in texts for line in wrap(text, self._console.width)]
        shown = max(1, _rows_max(self._console) - len(caption))
        table = _table(self.rows[-shown:], width=self._console.width)
        return Group(table, *(Text(line, style="italic dim") for line in caption))


def _left(last: dict[str, Any], since_s: float) -> str:
    """How long the run takes still, at the rate so far. last: the last progress that the server told; since_s: how
    long ago that was."""
    version, rounds, elapsed_s = last["version"], last["rounds"], last["elapsed_s"]
    if not version:
        return f"the first of {rounds} rounds are under way, for {since_s:.0f} s"
    left_s = max(0.0, elapsed_s / version * (rounds - version) - since_s)
    return f"a round takes {elapsed_s / version:.2f} s on average; about {left_s:.0f} s left"


def _rows_max(console: Console) -> int:
    """How many rows there is room for between the heading and the cursor."""
    return min(ROWS, max(1, console.height - 2)) if console.is_terminal else ROWS


def _table(rows: Sequence[Sequence[str]], *, width: int = 80, heading: bool = True) -> Table:
    """Rows one under another, whole in so many characters; columns that there is no room for are left out."""
    shown = list(range(len(HEADINGS)))
    is_wide, widths = True, _widths(rows, is_wide=True)
    if sum(widths) + GAP * (len(widths) - 1) > width:
        is_wide, widths = False, _widths(rows, is_wide=False)
    for column in LEFT_OUT_FIRST:
        if sum(widths[i] + GAP for i in shown) - GAP > width:
            shown.remove(column)
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, show_header=heading)
    for i in shown:
        long, short, *_ = HEADINGS[i]
        table.add_column(long if is_wide else short, justify="right", min_width=widths[i], no_wrap=True)
    for row in rows:
        table.add_row(*(row[i] for i in shown))
    return table


def _widths(rows: Sequence[Sequence[str]], *, is_wide: bool) -> list[int]:
    """Characters that each column takes."""
    headings = [
        (long, least_wide) if is_wide else (short, least) for long, short, least_wide, least in HEADINGS
    ]
    return [
        max(least, len(heading), *(len(row[i]) for row in rows))
        for i, (heading, least) in enumerate(headings)
    ]


def _row(fact: dict[str, Any]) -> tuple[str, ...]:
    active = sum(fact["clients"][state] for state in ("waiting", "working", "contributed", "unavailable"))
    return (
        f"{fact['version']}/{fact['rounds']}",
        printing.figure(fact["accuracy"], ".4f"),
        printing.figure(fact["loss"], ".4f"),
        printing.figure(fact["staleness_mean"], ".2f"),
        f"{fact['updates_per_s']:,.0f}",
        str(active),
        f"{fact['elapsed_s']:.1f}",
    )


def _farewell(finished: dict[str, Any]) -> str:
    updates = ", ".join(f"{count} {name}" for name, count in finished["updates"].items())
    accuracy = printing.figure(finished["test_accuracy"], ".4f")
    return (
        f"\n[bold]test accuracy {accuracy}[/bold] after {finished['versions']} versions in "
        f"{finished['seconds']:.1f} s\nupdates: {updates}\n"
        f"model digest {finished['model_digest']}\n\n"
        "Try next:\n"
        "  unstale demo --policy fedbuff           weigh late updates in another way\n"
        "  unstale policies                        all the ways that there are\n"
        "  unstale demo --trigger sync             wait for everybody, see what it costs\n"
        "  unstale demo --scenario flaky           messages lost, doubled and out of order\n"
        "  unstale simulate --clients 100 --k 10   the same machinery in virtual time\n"
        "  unstale server                          your own run; then, in other\n"
        "                                          terminals, unstale client --count 10"
    )
