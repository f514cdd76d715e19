"""The command line `unstale`. Commands import PyTorch, NumPy and rich when they run.

A command is a function, added to `app` below. With `@takes_settings(...)` its first
parameter is the configuration, and the keys of some sections are its options. Other packages register commands under
an entry point: see `commands`.
"""

import errno
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.main import get_command

from unstale.cli import config, data, inversion, keys, output, partition, scenario
from unstale.cli.app import App
from unstale.cli.client import client
from unstale.cli.commands import ExtensibleCommands
from unstale.cli.demo import demo
from unstale.cli.export import export
from unstale.cli.inject import inject
from unstale.cli.parts import compensators, conformance, policies
from unstale.cli.replay import replay
from unstale.cli.report import report
from unstale.cli.run_directory import explain, restore, rollback, verify
from unstale.cli.server import server
from unstale.cli.simulate import simulate
from unstale.errors import UserError
from unstale.version import __version__

USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]
"""A mistake in a command line: a class of click, or of Typer where it brings its own click."""

app = App(
    cls=ExtensibleCommands,
    help="Federated learning that does not wait: one model, many clients, updates that arrive late.",
    add_completion=True,
)


def _print_version(is_set: bool) -> None:
    if is_set:
        print(f"unstale {__version__}")
        raise typer.Exit


@app.callback()
def _options_of_unstale_itself(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


for command in (
    *(demo, server, client, inject, simulate, replay, explain, restore, rollback, verify, report, export),
    *(policies, compensators, conformance),
):
    app.command()(command)
for group in (config, data, inversion, keys, partition, scenario):
    app.add_typer(group.app, name=group.__name__.rpartition(".")[2])


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code: 0, 2 for a user's mistake, 130 after Ctrl-C.

    Mistakes are printed as one line on stderr; other exceptions are defects, and raised.
    """
    command = get_command(app)
    try:
        code = command.main(list(arguments) or ["--help"], prog_name="unstale", standalone_mode=False)
    except UserError as error:
        return _print_error(str(error))
    except USAGE_ERROR as error:
        return _print_error(_message(error))
    except typer.Abort:  # Ctrl-C, in Typer 0.12
        code = 130
    except SystemExit as end:  # after the completion of a line, or a closed pipe
        code = end.code
    return code if isinstance(code, int) else 0


def _print_error(message: str) -> int:
    print(f"unstale: {message}", file=sys.stderr)
    return 2


def _message(error: Any) -> str:
    """Return the message of Typer in the form of ours. error: a `USAGE_ERROR`."""
    context = getattr(error, "ctx", None)
    advice = f"; see {context.command_path} --help" if context else ""
    if error.message.startswith("No such option"):
        near = getattr(error, "possibilities", None)
        advice = f"; did you mean {near[0]!r}?" if near else advice
        return f"unknown option {getattr(error, 'option_name', '')!r}{advice}"
    text = " ".join(error.format_message().split()).removesuffix(".")
    return text[:1].lower() + text[1:] + advice


def main() -> None:
    """Run the command line of this process and exit. A failure of standard output is one line on stderr."""
    output.write_lookalikes()
    try:
        code = run(sys.argv[1:])
        output.flush()
    except OSError:
        failure = output.failure()
        if failure is None:
            raise
        if failure.errno in (errno.EPIPE, errno.ESHUTDOWN):  # the reader has closed the pipe, as `| head -1` does
            sys.exit(1)
        code = _print_error(f"cannot write to standard output: {(failure.strerror or str(failure)).lower()}")
    sys.exit(code)
