"""`unstale server`: serve one run."""

from unstale.cli import printing
from unstale.cli.inversion import announce
from unstale.cli.options import COMMON_IN_RUNS, RUN, takes_settings
from unstale.cli.parameters import AsJson, EndsWithInput
from unstale.config import Settings
from unstale.imports import imports


@takes_settings(
    *(*RUN, "run", "server"),
    common=(
        *("run.directory", "run.durability", "server.address", "server.keys", "server.insecure"),
        *("server.http_address", "min_clients", *COMMON_IN_RUNS, "initial", "encoding.updates"),
    ),
)
def server(settings: Settings, as_json: AsJson = False, ends_with_input: EndsWithInput = False) -> None:
    """Serve one run: wait for clients, send them the model, aggregate their updates."""
    with imports():
        from unstale.server.service import Server  # imports torch

    printing.log_to_stderr()
    announce(settings)
    printer = printing.ProgressPrinter(as_json=as_json)
    run = Server(settings, on_progress=printer)
    printing.stop_on_signals(lambda _: run.stop())
    if ends_with_input:
        printing.stop_at_end_of_input(run.stop)
    if as_json:
        printing.json_line("listening", {"address": run.address, "http_address": run.http_address})
    else:
        http = f"; watch it at http://{run.http_address}/" if run.http_address else ""
        printing.line(f"listening at {run.address}{http}")
        printing.line(run.standing)
    with printer:
        end = run.run()
    printing.outcome(end, as_json=as_json)
    run.save()
    if settings.server.stay:
        if not as_json and end.reason == "finished":
            printing.line("the status page stays available; stop with Ctrl-C")
        run.stay()
