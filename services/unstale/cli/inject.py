"""`unstale inject`: pass messages between clients and server through the toxics of a scenario."""

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from unstale.cli import printing
from unstale.cli.options import takes_settings
from unstale.config import Settings

if TYPE_CHECKING:
    from unstale.injector.numbers import Numbers

LINE_S = 5.0  # between two lines for people
JSON_S = 1.0  # between two lines for programs

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON lines, for programs.")]


@takes_settings(
    *("injector", "scenario", "clients", "seed", "data", "partition"),
    common=(
        "injector.upstream",
        "injector.address",
        "injector.http_address",
        "injector.keys",
        "scenario.name",
        "clients",
        "seed",
    ),
)
def inject(
    settings: Settings, as_json: AsJson = False, ends_with_input: printing.EndsWithInput = False
) -> None:
    """Stand between clients and server, and delay, lose or damage what they say, as a scenario tells.

    Clients connect to --injector.address as if it were the server. The number of clients, the seed, the data and the
    partition are those of the run.
    """
    from unstale.injector.service import Injector

    printing.log_to_stderr()
    injector = Injector(settings)
    printing.stop_on_signals(lambda _: injector.stop())
    if ends_with_input:
        printing.stop_at_end_of_input(injector.stop)
    if as_json:
        printing.json_line("listening", {"address": injector.address, "http_address": injector.http_address})
    else:
        control = f"; control and metrics at http://{injector.http_address}" if injector.http_address else ""
        printing.line(f"listening at {injector.address} for {settings.injector.upstream}{control}")
    end = injector.run(partial(_tell, as_json=as_json), JSON_S if as_json else LINE_S)
    _tell(end, as_json=as_json, ended=True)


def _tell(numbers: "Numbers", *, as_json: bool, ended: bool = False) -> None:
    facts = asdict(numbers)
    if as_json:
        printing.json_line("injected", facts)
    else:
        when = "in all" if ended else f"{numbers.scenario_s:>7.0f} s"
        printing.line(f"{when}  {printing.injected(facts)}")
