"""`unstale inject`: pass messages between clients and server through the toxics of a scenario."""

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from unstale.cli import printing
from unstale.cli.options import takes_settings
from unstale.cli.parameters import AsJson, EndsWithInput
from unstale.config import Settings
from unstale.imports import imports

if TYPE_CHECKING:
    from unstale.injector.numbers import Numbers

LINE_S = 5.0  # between two lines for people
JSON_S = 1.0  # between two lines for programs


@takes_settings(
    *("injector", "scenario", "clients", "seed", "data", "partition"),
    common=(
        *("injector.upstream", "injector.address", "injector.http_address", "injector.keys"),
        *("scenario.name", "clients", "seed"),
    ),
)
def inject(settings: Settings, as_json: AsJson = False, ends_with_input: EndsWithInput = False) -> None:
    """Delay, lose or damage messages between clients and server, as a scenario describes.

    Clients connect to --injector.address in place of the server. The number of clients, the seed, the data and the
    partition are those of the run.
    """
    with imports():
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
    end = injector.run(partial(_print, as_json=as_json), JSON_S if as_json else LINE_S)
    _print(end, as_json=as_json, has_ended=True)


def _print(numbers: "Numbers", *, as_json: bool, has_ended: bool = False) -> None:
    facts = asdict(numbers)
    if as_json:
        printing.json_line("injected", facts)
    else:
        when = "in total" if has_ended else f"{numbers.scenario_s:>7.0f} s"
        printing.line(f"{when}  {printing.injected(facts)}")
