"""Every key of the configuration as an option, made from the key itself.

The option of a key is its name: `--training.learning-rate`, `--rounds`. Two things make it shorter: the name
of a part is the part (`--policy` is `policy.name`), and keys that are set often have a second one in `SHORT`.

A second name such as `--alpha` always sets its own key, here `partition.alpha`. Where another key that the command
takes, or a setting of the chosen policy or compensator, has the same last word, a line on stderr names both.
"""

import inspect
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from unstale.cli.app import COMMON, HELP_ALL, typed
from unstale.config import Given, Settings, load
from unstale.config.keys import KEYS, Key
from unstale.config.load import FILE_VARIABLE
from unstale.config.write import as_yaml
from unstale.errors import UserError

RUN = (
    *("", "flower", "model", "data", "partition", "training", "objective", "policy"),
    *("compensator", "trigger", "selector", "encoding", "scenario", "run.until"),
)
"""The sections that describe a run, "" being the keys that stand in no section, and a key."""

_BY_THEIR_LAST_WORD = (
    *("client.count", "client.first", "client.key", "client.server", "client.server_key"),
    *("data.cache", "data.download", "flower.num_partitions", "flower.partition_id", "flower.run_config"),
    *("injector.upstream", "partition.alpha", "run.durability", "run.until"),
    *("server.address", "server.insecure", "server.keys"),
    *("training.batch_size", "training.epochs", "training.steps", "trigger.k"),
)
SHORT = {name: "--" + name.rpartition(".")[2].replace("_", "-") for name in _BY_THEIR_LAST_WORD} | {
    "app": "--flower",
    "attack.name": "--attacker",
    "run.directory": "--run",
    "training.learning_rate": "--lr",
}
"""The second name of a key that is set often."""

COMMON_IN_RUNS = (
    *("clients", "rounds", "run.until", "seed", "device", "save_model", "app", "model.name", "data.name", "data.path"),
    *("partition.name", "partition.alpha", "training.name", "training.learning_rate", "objective.name"),
    *("policy.name", "compensator.name", "trigger.name", "trigger.k", "scenario.name"),
)
"""The keys that most runs set, for `takes_settings(common=...)`."""

OF_PARTS_TOO = {
    "partition.alpha": " --alpha sets partition.alpha; the alpha of a policy or a compensator is "
    "--set policy.settings.alpha=VALUE or --set compensator.settings.alpha=VALUE."
}
"""Keys of `SHORT` whose second name is also a setting of a policy or a compensator, and what their help says of it."""


def option(name: str) -> str:
    """The option of a key: `--training.learning-rate`, and `--policy` for `policy.name`."""
    return "--" + name.removesuffix(".name").replace("_", "-")


def takes_settings(*sections: str, common: Sequence[str]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Turn `command(settings, ...)` into a Typer command with the options of these sections' keys.

    The command's further parameters are options of its own.

    Args:
        sections: as in `Key.section`, or names of keys. Any other key can be given as `--set KEY=VALUE`.
        common: the keys whose options `--help` shows; `--help-all` shows those of all sections.
    """
    chosen = {key.name: key for key in KEYS.values() if {key.section, key.name} & {*sections}}
    # In the order of `common`, and then in that of the file.
    keys = {name.replace(".", "__"): chosen[name] for name in (*common, *chosen)}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def with_options(
            context: typer.Context, config_file: Path | None, assignments: list[str] | None, **arguments: Any
        ) -> None:
            del arguments["help_all"]
            options = dict(assigned(text) for text in assignments or ())
            shortened = []
            for parameter, key in keys.items():
                text = arguments.pop(parameter)
                if text is not None:
                    names = _names(key)
                    origin = typed(context, [*names, *map(_negated, names)])
                    options[key.name] = Given(value=str(text), origin=origin)
                    if key.name in SHORT and origin in (SHORT[key.name], _negated(SHORT[key.name])):
                        shortened.append(key)
            settings = load(config_file, os.environ, options)
            for key in shortened:
                _name_the_others(key, keys.values(), settings)
            command(settings, **arguments)

        own = list(inspect.signature(command).parameters.values())[1:]
        added = [_parameter(parameter, key, is_common=key.name in common) for parameter, key in keys.items()]
        everything = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in (*own, *inspect.signature(_of_every_command).parameters.values(), *added)
        ]
        with_options.__signature__ = inspect.Signature(everything)  # type: ignore[attr-defined]
        with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in everything}
        return with_options

    return decorate


def _of_every_command(
    context: typer.Context,
    config_file: Annotated[
        Path | None,
        typer.Option(
            "--config",
            envvar=FILE_VARIABLE,
            help="YAML file with any of the keys; `unstale config write` makes one.",
            show_default=False,
        ),
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Set any key, such as policy.settings.normalise=false. May be repeated.",
            show_default=False,
        ),
    ] = None,
    help_all: Annotated[bool, HELP_ALL] = False,
) -> None:
    """The parameters that every command with settings has."""


def assigned(text: str) -> tuple[str, Given]:
    name, sign, value = text.partition("=")
    if not sign:
        raise UserError(f"--set is {text!r}, expected KEY=VALUE, for example --set trigger.k=10")
    return name, Given(value=value, origin="--set")


def _names(key: Key) -> list[str]:
    """The options that set a key, the long one first."""
    return [option(key.name), *([SHORT[key.name]] if key.name in SHORT else [])]


def _negated(name: str) -> str:
    return f"--no-{name.removeprefix('--')}"


def _name_the_others(key: Key, keys: Iterable[Key], settings: Settings) -> None:
    """Say which key a second name has set, where it could be taken for another one."""
    short = SHORT[key.name]
    word = short.removeprefix("--").replace("-", "_")
    others = [option(other.name) for other in keys if other != key and other.name.rpartition(".")[2] == word]
    for part in ("policy", "compensator") if key.name in OF_PARTS_TOO else ():
        chosen = getattr(settings, part)
        if word not in chosen.settings and word in _settings_of(part, chosen.name):
            others.append(f"--set {part}.settings.{word}=VALUE")
    if others:
        print(
            f"unstale: {short} sets {key.name}; other keys of that name are set by {' and '.join(others)}",
            file=sys.stderr,
        )


def _settings_of(part: str, name: str) -> list[str]:
    """The settings of a policy or a compensator; none where there is no such part, which is told elsewhere."""
    from unstale import compensators, policies  # imports torch

    describe: Callable[[str], Any] = {"policy": policies.describe, "compensator": compensators.describe}[part]
    try:
        return [setting.name for setting in describe(name).settings]
    except UserError:
        return []


_METAVARS = {int: "INTEGER", float: "NUMBER", str: "TEXT", dict: "MAPPING", list: "LIST"}


def _parameter(name: str, key: Key, *, is_common: bool) -> inspect.Parameter:
    names = _names(key)[::-1]
    if key.kind is bool:
        names = [f"{yes}/{_negated(yes)}" for yes in names]
    described = typer.Option(
        *names,
        help=_help(key),
        metavar=_METAVARS.get(key.kind),
        rich_help_panel=COMMON if is_common else key.section or "run as a whole",
        show_default=False,
    )
    kind: Any = bool if key.kind is bool else str
    annotation = Annotated[kind | None, described]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _help(key: Key) -> str:
    """Two paragraphs, the second one for `--help-all`."""
    unit = f" {key.unit}" if key.unit and key.default is not None else ""
    return (
        f"{key.description}{OF_PARTS_TOO.get(key.name, '')} Default: {as_yaml(key.default)}{unit}.\n\n"
        f"Expected: {key.expected}. Key {key.name}, variable {key.variable}."
    )
