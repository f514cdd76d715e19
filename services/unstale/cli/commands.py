"""Commands that other packages register under an entry point.

A package declares the entry point `name = "package.module:command"` in the group `unstale.commands`; the object is a
`typer.Typer` with commands below that name, or a function with Typer's options. It is imported when the command is
called or listed, and for no other command. Commands of unstale itself cannot be replaced.
"""

from typing import Any, NoReturn

import typer
from typer.core import TyperCommand
from typer.main import get_group

from unstale import plugins
from unstale.cli.app import App, Group
from unstale.errors import UserError

ENTRY_POINT_GROUP = "unstale.commands"
NOT_INSTALLED = dict.fromkeys(("reproduce", "sweep"), ("unstale-papers", "./papers"))
"""Commands of packages in the same repository, by name: the package, and the folder to install."""


class ExtensibleCommands(Group):
    """Commands of unstale and of other packages."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands, those of other packages last."""
        own = super().list_commands(ctx)
        return [*own, *(name for name in plugins.names(ENTRY_POINT_GROUP, own) if name not in own)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command. If its import fails, it has the error message as its help, and raises it when called."""
        own = super().list_commands(ctx)
        if cmd_name in own:
            return super().get_command(ctx, cmd_name)
        if cmd_name in self.list_commands(ctx):
            try:
                return _loaded(cmd_name)
            except UserError as error:
                return _NotLoaded(cmd_name, error)
        if cmd_name in NOT_INSTALLED and not ctx.resilient_parsing:
            package, folder = NOT_INSTALLED[cmd_name]
            raise UserError(
                f"the command {cmd_name!r} is in the package {package}, which is not installed; install it from the "
                f"repository of unstale: pip install {folder}"
            )
        return super().get_command(ctx, cmd_name)


class _NotLoaded(TyperCommand):
    """A command whose import failed."""

    def __init__(self, name: str, error: UserError) -> None:
        super().__init__(name, help=str(error))
        self._error = error

    def make_context(self, *_: Any, **__: Any) -> NoReturn:
        raise self._error


def _loaded(name: str) -> Any:
    """Import the command of another package. Raises UserError."""
    point = plugins.entry_point("command", name, ENTRY_POINT_GROUP, ())
    try:
        command = point.load()
    except Exception as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"command {name!r} cannot be imported from {point.value}: {why}") from error
    holder = App(help="")
    if isinstance(command, typer.Typer):
        holder.add_typer(command, name=name, cls=Group)
    elif callable(command) and not isinstance(command, type):
        holder.command(name)(command)
    else:
        raise UserError(f"command {name!r} is {point.value}, expected a typer.Typer or a function")
    return get_group(holder).commands[name]
