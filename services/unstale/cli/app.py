"""Commands and groups of commands of `unstale`, with help that fits the terminal.

`--help` shows the common options of the configuration; `--help-all` shows every option.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from textwrap import wrap
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typing_extensions import override

from unstale.errors import unknown_name

COMMON = "Common options"
"""The panel of the configuration's options that `--help` shows."""
_SHOWN_FIRST = ("Arguments", "Options", COMMON)
_INDENT = 2
_TEXT_COLUMN_MAX = 26  # a longer name has its text on the next line
_ARGUMENTS = "unstale.arguments"


def help_text(command: Any, context: Any, *, everything: bool) -> str:
    """Return the help of a `Command` or `Group`, as wide as the terminal.

    everything: show options that are not common, too.
    """
    width = shutil.get_terminal_size().columns
    panels = _panels(command, context)
    left_out = [] if everything else [name for name in panels if name not in _SHOWN_FIRST]
    lines = _usage(command, context, width)
    for paragraph in filter(None, (command.help or "").split("\n\n")):
        lines += ["", *_wrapped(paragraph, width)]
    for name, parameters in panels.items():
        if name not in left_out:
            lines += _block(name, [_row(each, context, everything=everything) for each in parameters], width)
    if isinstance(command, TyperGroup):
        lines += _block("Commands", _commands(command, context), width)
    return "\n".join([*lines, *_hints(panels, left_out, context, width)]) + "\n"


def _commands(group: TyperGroup, context: Any) -> list[tuple[str, str]]:
    """Return name and summary of each command."""
    below: list[tuple[str, Any]] = [(name, group.get_command(context, name)) for name in group.list_commands(context)]
    return [(name, (command.help or "").partition("\n\n")[0]) for name, command in below]


def _usage(command: Any, context: Any, width: int) -> list[str]:
    pieces = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    first, *others = wrap(f"Usage: {pieces}", width, subsequent_indent=" " * 7, break_on_hyphens=False)
    return [typer.style("Usage:", bold=True) + first.removeprefix("Usage:"), *others]


def _hints(panels: dict[str, list[Any]], left_out: Sequence[str], context: Any, width: int) -> list[str]:
    """Return lines on options that are not shown, and on the configuration file."""
    hint = "`unstale config write` writes a YAML file with every key, for --config."
    if not left_out:
        return ["", *_wrapped(hint, width)] if COMMON in panels else []
    more = ", ".join(f"{name} ({len(panels[name])})" for name in left_out)
    lines = ["", *_wrapped(f"More options: {more}.", width)]
    if COMMON in panels:
        lines += _wrapped(f"`{context.command_path} --help-all` shows them. {hint}", width)
    return lines


def _panels(command: Any, context: Any) -> dict[str, list[Any]]:
    """Return the visible parameters by heading."""
    panels: dict[str, list[Any]] = {name: [] for name in _SHOWN_FIRST}
    for parameter in command.get_params(context):
        if not getattr(parameter, "hidden", False):
            default = "Arguments" if parameter.param_type_name == "argument" else "Options"
            panels.setdefault(getattr(parameter, "rich_help_panel", None) or default, []).append(parameter)
    return {name: parameters for name, parameters in panels.items() if parameters}


def _row(parameter: Any, context: Any, *, everything: bool) -> tuple[str, str]:
    """Return names and text of a parameter. everything: all paragraphs of the text instead of the first one."""
    names, text = parameter.get_help_record(context)
    paragraphs = (parameter.help or "").split("\n\n")
    details = text.removeprefix(parameter.help or "").strip().replace("\\[", "[")  # Typer 0.20 escapes it for rich
    shown = paragraphs if everything else paragraphs[:1]
    return names, " ".join(filter(None, [*shown, details]))


def _block(heading: str, rows: Sequence[tuple[str, str]], width: int) -> list[str]:
    """Return an empty line, a heading, and names, each with its text to the right."""
    longest = max((len(name) for name, _ in rows), default=0)
    column = min(_INDENT + longest + 2, _TEXT_COLUMN_MAX, width // 2)
    entries = [line for name, text in rows for line in _entry(name, text, column, width)]
    return ["", typer.style(f"{heading}:", bold=True), *entries]


def _entry(name: str, text: str, column: int, width: int) -> Iterator[str]:
    """Yield the lines of a name and its text, which begins below a name that is too long."""
    *above, last = [" " * _INDENT + line for line in wrap(name, width - _INDENT, break_on_hyphens=False)]
    # A word that does not fit beside the names has its text begin further to the left.
    fits = all(len(word) <= width - column for word in text.split())
    indent = column if fits else _INDENT * 3
    texts = _wrapped(text, width - indent)
    first = ""
    if fits and texts and len(last) + 2 <= column:
        first = " " * (column - len(last)) + texts.pop(0)
    yield from (typer.style(line, bold=True) for line in above)
    yield typer.style(last, bold=True) + first
    yield from (" " * indent + line for line in texts)


def _wrapped(text: str, width: int) -> list[str]:
    """Return the lines of a paragraph. A word that is longer than a line continues in the next one."""
    return wrap(" ".join(text.split()), max(width, 1), break_on_hyphens=False)


class Command(TyperCommand):
    """A command. It stores its command line, for messages that name an option as it was typed."""

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[_ARGUMENTS] = tuple(args)
        return super().parse_args(ctx, args)

    @override
    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(help_text(self, ctx, everything=False))


class Group(TyperGroup):
    """Commands by name."""

    @override
    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command. Raises UserError for an unknown name, except while a shell completes a line."""
        command = super().get_command(ctx, cmd_name)
        if command is None and not ctx.resilient_parsing:
            raise unknown_name("command", cmd_name, self.list_commands(ctx))
        return command

    @override
    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(help_text(self, ctx, everything=False))


class App(typer.Typer):
    """Commands that belong together. A single command keeps its name."""

    def __init__(self, *, help: str, add_completion: bool = False, cls: type[Group] = Group) -> None:  # noqa: A002
        super().__init__(
            cls=cls,
            help=help,
            add_completion=add_completion,
            pretty_exceptions_enable=False,
            context_settings={"help_option_names": ["-h", "--help"]},
        )
        self.callback()(lambda: None)  # without a callback Typer takes a single command for the whole app

    @override
    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        return super().command(name, **{"cls": Command, **options})


def typed(context: Any, names: Sequence[str]) -> str:
    """Return which of an option's names the command line has last; the first name if it has none."""
    options = [argument.partition("=")[0] for argument in context.meta.get(_ARGUMENTS, ())]
    return next((option for option in reversed(options) if option in names), names[0])


def _print_everything(context: typer.Context, is_set: bool) -> None:
    if is_set:
        typer.echo(help_text(context.command, context, everything=True), nl=False)
        raise typer.Exit


HELP_ALL = typer.Option(
    "--help-all",
    help="Show every option, with its range, key and variable, and exit.",
    callback=_print_everything,
    is_eager=True,
)
