"""Commands that other packages register under an entry point.

A package declares the entry point `name = "package.module:command"` in the group `unstale.commands`. The object is a
function with Typer's options, or a `typer.Typer`, whose commands become subcommands of the name. Only a call or a help
text imports it. A package cannot replace commands of unstale itself.
"""

from typing import Any, NoReturn

import typer
from typer.core import TyperCommand
from typer.main import get_group

from unstale import plugins
from unstale.cli.app import App, Group
from unstale.errors import UserError

ENTRY_POINT_GROUP = "unstale.commands"
INSTALLABLE = dict.fromkeys(("reproduce", "sweep", "recommend"), ("unstale-papers", "./papers"))
"""Package and folder to install, by name of a command that another package of the repository has."""


class ExtensibleCommands(Group):
    """The group of the commands of unstale and of other packages."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands, those of other packages last."""
        own = super().list_commands(ctx)
        return [*own, *(name for name in plugins.names(ENTRY_POINT_GROUP, own) if name not in own)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command. One whose import fails shows the error as its help, and raises it when called."""
        own = super().list_commands(ctx)
        if cmd_name in own:
            return super().get_command(ctx, cmd_name)
        if cmd_name in self.list_commands(ctx):
            try:
                return _import_command(cmd_name)
            except UserError as error:
                return _BrokenCommand(cmd_name, error)
        if cmd_name in INSTALLABLE and not ctx.resilient_parsing:
            package, folder = INSTALLABLE[cmd_name]
            raise UserError(
                f"the command {cmd_name!r} is in the package {package}, which is not installed; install it from the "
                f"repository of unstale: pip install {folder}"
            )
        return super().get_command(ctx, cmd_name)


class _BrokenCommand(TyperCommand):
    """A command whose import failed."""

    def __init__(self, name: str, error: UserError) -> None:
        super().__init__(name, help=str(error))
        self._error = error

    def make_context(self, *_: Any, **__: Any) -> NoReturn:
        raise self._error


def _import_command(name: str) -> Any:
    """Import the command of another package. Raises UserError."""
    point = plugins.entry_point("command", name, ENTRY_POINT_GROUP, ())
    try:
        command = point.load()
    except Exception as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"command {name!r} cannot be imported from {point.value}: {why}") from error
    app = App(help="")
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=name, cls=Group)
    elif callable(command) and not isinstance(command, type):
        app.command(name)(command)
    else:
        raise UserError(f"command {name!r} is {point.value}, expected a typer.Typer or a function")
    return get_group(app).commands[name]
