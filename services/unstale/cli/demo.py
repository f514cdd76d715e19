"""`unstale demo`: a whole run on this machine, server and clients as processes of their own, watched live."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from math import nan
from pathlib import Path
from typing import IO, Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table

from unstale.cli import report
from unstale.cli.options import RUN, takes_settings
from unstale.config import Settings
from unstale.config.write import resolved
from unstale.errors import UserError

PROCESSES = 2  # client processes, with half of the clients each
ROWS = 24  # of the live table; older rows scroll out
GOODBYE_S = 30.0  # a client process that is still there so long after the server's end is ended

AsJson = Annotated[bool, typer.Option("--json", help="Print no table, but one last line of JSON.")]


@takes_settings(*RUN)
def demo(settings: Settings, as_json: AsJson = False) -> None:
    """Train on this machine over loopback sockets: a server, two processes of clients, and what they achieve."""
    console = Console(stderr=as_json)
    with ExitStack() as stack:
        file = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="unstale-demo-"))) / "demo.yaml"
        file.write_text(resolved(_on_free_ports(settings)), encoding="utf-8")
        server = stack.enter_context(_Process("server", "--config", str(file), "--json"))
        facts = server.facts()
        listening = next(facts, None)
        if listening is None:
            raise UserError(server.last_words())
        console.print(_introduction(settings, listening), highlight=False, soft_wrap=True)
        clients = [
            stack.enter_context(
                _Process("client", "--config", str(file), "--server", listening["address"],
                         "--first", str(first), "--count", str(count))
            )
            for first, count in _shares(settings.clients)
        ]  # fmt: skip
        finished = _watch(facts, console, server)
        for client in clients:
            client.wait()
    if as_json:
        print(json.dumps({
            "test_accuracy": finished["test_accuracy"],
            "versions": finished["versions"],
            "seconds": finished["seconds"],
            "model_digest": finished["model_digest"],
        }))  # fmt: skip
    else:
        console.print(_farewell(finished), highlight=False, soft_wrap=True)


class _Process:
    """An `unstale` command running beside this one. Ended, if it still runs, when its context is left."""

    def __init__(self, *arguments: str) -> None:
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed in __exit__)
        self._process = subprocess.Popen(  # noqa: S603  (our own program)
            [sys.executable, "-m", "unstale", *arguments],
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
        )

    def __enter__(self) -> "_Process":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._said.close()

    def facts(self) -> Iterator[dict[str, Any]]:
        """The JSON lines that it prints, until it ends."""
        lines: IO[str] | None = self._process.stdout
        assert lines is not None
        return map(json.loads, lines)

    def wait(self) -> None:
        """Wait for its end; UserError with what it said when that was not a good one."""
        if self._process.wait(GOODBYE_S) != 0:
            raise UserError(self.last_words())

    def last_words(self) -> str:
        """The last line that it wrote to stderr."""
        self._process.wait(GOODBYE_S)
        self._said.seek(0)
        lines = self._said.read().strip().splitlines()
        return lines[-1].removeprefix("unstale: ") if lines else f"exit code {self._process.returncode}"


def _on_free_ports(settings: Settings) -> Settings:
    server = settings.server.model_copy(
        update={"address": "tcp://127.0.0.1:0", "http_address": "127.0.0.1:0"}
    )
    return settings.model_copy(update={"server": server})


def _shares(clients: int) -> list[tuple[int, int]]:
    """(first, count) of each client process."""
    bounds = [clients * i // PROCESSES for i in range(PROCESSES + 1)]
    return [(first, end - first) for first, end in pairwise(bounds) if end > first]


def _introduction(settings: Settings, listening: dict[str, Any]) -> str:
    return (
        f"[bold]{settings.clients} clients[/bold] train [bold]{settings.model.name}[/bold] on "
        f"[bold]{settings.data.name}[/bold] ({settings.partition.name} partition);\n"
        f"policy {settings.policy.name}, trigger {settings.trigger.name}.\n"
        f"server {listening['address']}   metrics http://{listening['http_address']}/metrics\n"
    )


def _watch(facts: Iterator[dict[str, Any]], console: Console, server: _Process) -> dict[str, Any]:
    """Show the run until it ends; what the server said last."""
    rows: list[tuple[str, ...]] = []
    starting = Spinner("dots", "the clients are starting ...")
    with Live(starting, console=console, refresh_per_second=8) as live:
        for fact in facts:
            if fact["event"] == "finished":
                return fact
            rows.append(_row(fact))
            live.update(_table(rows[-ROWS:]))
    raise UserError(f"the server ended early: {server.last_words()}")


def _table(rows: list[tuple[str, ...]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("version", "accuracy", "loss", "staleness", "updates/s", "clients", "seconds"):
        table.add_column(heading, justify="right", min_width=9)
    for row in rows:
        table.add_row(*row)
    return table


def _row(fact: dict[str, Any]) -> tuple[str, ...]:
    staleness = fact["staleness_mean"]
    active = sum(fact["clients"][state] for state in ("waiting", "working", "contributed"))
    return (
        f"{fact['version']}/{fact['rounds']}",
        f"{fact['accuracy']:.4f}",
        f"{fact['loss']:.4f}",
        report.rounds_late(nan if staleness is None else staleness),
        f"{fact['updates_per_s']:,.0f}",
        str(active),
        f"{fact['elapsed_s']:.1f}",
    )


def _farewell(finished: dict[str, Any]) -> str:
    updates = ", ".join(f"{count} {name}" for name, count in finished["updates"].items())
    return (
        f"\n[bold]test accuracy {finished['test_accuracy']:.4f}[/bold] after {finished['versions']} versions in "
        f"{finished['seconds']:.1f} s\nupdates: {updates}\n"
        f"model digest {finished['model_digest']}\n\n"
        "Try next:\n"
        "  unstale demo --policy fedbuff           weigh late updates in another way\n"
        "  unstale policies                        all the ways that there are\n"
        "  unstale demo --trigger sync             wait for everybody, see what it costs\n"
        "  unstale simulate --clients 100 --k 10   the same machinery in virtual time\n"
        "  unstale server                          your own run; then, in other\n"
        "                                          terminals, unstale client --count 10"
    )
