"""`unstale`: parse, call one function, print. Nothing here imports torch; a command does when it runs.

A command is a function in a file of its own, added to `app` below. With `@takes_settings(...)` its first
parameter is the configuration as resolved, and its options are the keys of the sections named. Other packages register
commands under an entry point: see `commands`.
"""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.main import get_command

from unstale import __version__
from unstale.cli import config, data, inversion, keys, output, partition, scenario
from unstale.cli.app import App
from unstale.cli.client import client
from unstale.cli.commands import ExtensibleCommands
from unstale.cli.compensators import compensators
from unstale.cli.conformance import conformance
from unstale.cli.demo import demo
from unstale.cli.explain import explain
from unstale.cli.inject import inject
from unstale.cli.policies import policies
from unstale.cli.replay import replay
from unstale.cli.report import report
from unstale.cli.restore import restore
from unstale.cli.rollback import rollback
from unstale.cli.server import server
from unstale.cli.simulate import simulate
from unstale.cli.verify import verify
from unstale.errors import UserError

app = App(
    cls=ExtensibleCommands,
    help="Federated learning that does not wait: one model, many clients, updates that arrive late.",
    add_completion=True,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"unstale {__version__}")
        raise typer.Exit


@app.callback()
def _options_of_unstale_itself(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


app.command()(demo)
app.command()(server)
app.command()(client)
app.command()(inject)
app.command()(simulate)
app.command()(replay)
app.command()(explain)
app.command()(restore)
app.command()(rollback)
app.command()(verify)
app.command()(report)
app.command()(policies)
app.command()(compensators)
app.command()(conformance)
app.add_typer(config.app, name="config")
app.add_typer(data.app, name="data")
app.add_typer(inversion.app, name="inversion")
app.add_typer(keys.app, name="keys")
app.add_typer(partition.app, name="partition")
app.add_typer(scenario.app, name="scenario")


def run(arguments: Sequence[str]) -> int:
    """Carry out one command line and return its exit code: 0, 2 for a user's mistake, 130 after Ctrl-C.

    A mistake is one sentence on stderr. What else goes wrong is our own, and raised.
    """
    command = get_command(app)
    try:
        code = command.main(list(arguments) or ["--help"], prog_name="unstale", standalone_mode=False)
    except UserError as error:
        return _told(str(error))
    except typer.TyperException as error:
        return _told(_sentence(error))
    except SystemExit as end:  # Typer has completed a line, or nobody reads the output any more
        code = end.code
    return code if isinstance(code, int) else 0


def _told(sentence: str) -> int:
    print(f"unstale: {sentence}", file=sys.stderr)
    return 2


def _sentence(error: typer.TyperException) -> str:
    """What Typer has to say about a command line, in our form."""
    context = getattr(error, "ctx", None)
    advice = f"; see {context.command_path} --help" if context else ""
    if error.message.startswith("No such option"):
        near = getattr(error, "possibilities", None)
        advice = f"; did you mean {near[0]!r}?" if near else advice
        return f"unknown option {getattr(error, 'option_name', '')!r}{advice}"
    text = " ".join(error.format_message().split()).removesuffix(".")
    return text[:1].lower() + text[1:] + advice


def main() -> None:
    """Carry out the command line of this process and end it. Output that cannot be written is one line on stderr."""
    output.write_lookalikes()
    try:
        code = run(sys.argv[1:])
        output.flush()
    except OSError:
        failure = output.failure()
        if failure is None:
            raise
        if output.is_closed_pipe(failure):
            sys.exit(1)
        code = _told(f"cannot write to standard output: {(failure.strerror or str(failure)).lower()}")
    sys.exit(code)
