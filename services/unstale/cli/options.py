"""Every key of the configuration as an option, made from the key itself.

The option of a key is its name: `--training.learning-rate`, `--rounds`. Two things make it shorter: the name
of a part is the part (`--policy` is `policy.name`), and keys that are set often have a second one in `SHORT`.
"""

import inspect
import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from unstale.config import Given, load
from unstale.config.keys import KEYS, Key
from unstale.config.load import FILE_VARIABLE
from unstale.config.write import as_yaml
from unstale.errors import UserError

RUN = (
    "",
    "model",
    "data",
    "partition",
    "training",
    "policy",
    "compensator",
    "trigger",
    "selector",
    "encoding",
    "scenario",
)
"""The sections that describe a run, "" being the keys that stand in no section."""

SHORT = {
    "attack.name": "--attacker",
    "client.count": "--count",
    "client.first": "--first",
    "client.key": "--key",
    "client.server": "--server",
    "client.server_key": "--server-key",
    "compensator.ray": "--ray",
    "data.cache": "--cache",
    "data.download": "--download",
    "injector.upstream": "--upstream",
    "partition.alpha": "--alpha",
    "run.directory": "--run",
    "run.durability": "--durability",
    "server.address": "--address",
    "server.insecure": "--insecure",
    "server.keys": "--keys",
    "training.batch_size": "--batch-size",
    "training.epochs": "--epochs",
    "training.learning_rate": "--lr",
    "training.steps": "--steps",
    "trigger.k": "--k",
}


def option(name: str) -> str:
    """The option of a key: `--training.learning-rate`, and `--policy` for `policy.name`."""
    return "--" + name.removesuffix(".name").replace("_", "-")


def takes_settings(*sections: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Turn `command(settings, ...)` into a Typer command with the options of these sections' keys.

    sections: as in `Key.section`, or names of keys. Any other key can be given as `--set KEY=VALUE`. The
    command's further parameters are options of its own.
    """
    keys = {
        key.name.replace(".", "__"): key for key in KEYS.values() if {key.section, key.name} & {*sections}
    }

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def with_options(**arguments: Any) -> None:
            config_file: Path | None = arguments.pop("config_file")
            assignments: list[str] = arguments.pop("assignments")
            options = dict(assigned(text) for text in assignments)
            for parameter, key in keys.items():
                text = arguments.pop(parameter)
                if text is not None:
                    options[key.name] = Given(value=str(text), origin=option(key.name))
            command(load(config_file, os.environ, options), **arguments)

        own = list(inspect.signature(command).parameters.values())[1:]
        added = [_parameter(parameter, key) for parameter, key in keys.items()]
        everything = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in (*own, _CONFIG_FILE, _ASSIGNMENTS, *added)
        ]
        with_options.__signature__ = inspect.Signature(everything)  # type: ignore[attr-defined]
        with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in everything}
        return with_options

    return decorate


def assigned(text: str) -> tuple[str, Given]:
    name, sign, value = text.partition("=")
    if not sign:
        raise UserError(f"--set is {text!r}, expected KEY=VALUE, for example --set trigger.k=10")
    return name, Given(value=value, origin="--set")


def _parameter(name: str, key: Key) -> inspect.Parameter:
    names = [option(key.name)]
    if key.name in SHORT:
        names.append(SHORT[key.name])
    if key.kind is bool:
        names = [f"{yes}/--no-{yes.removeprefix('--')}" for yes in names]
    described = typer.Option(
        *names,
        help=_help(key),
        metavar=_METAVARS.get(key.kind),
        rich_help_panel=key.section or "Options",
        show_default=False,
    )
    kind: Any = bool if key.kind is bool else str
    annotation = Annotated[kind | None, described]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _help(key: Key) -> str:
    unit = f" {key.unit}" if key.unit and key.default is not None else ""
    # No square brackets: they would be read as markup.
    return (
        f"{key.description} Default: {as_yaml(key.default)}{unit}. Expected: {key.expected}. "
        f"Key {key.name}, variable {key.variable}."
    )


_METAVARS = {int: "INTEGER", float: "NUMBER", str: "TEXT", dict: "MAPPING"}

_CONFIG_FILE = inspect.Parameter(
    "config_file",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        Path | None,
        typer.Option(
            "--config",
            envvar=FILE_VARIABLE,
            help="YAML file with any of the keys; `unstale config write` makes one.",
            show_default=False,
        ),
    ],
)

_ASSIGNMENTS = inspect.Parameter(
    "assignments",
    inspect.Parameter.KEYWORD_ONLY,
    default=(),
    annotation=Annotated[
        list[str],
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Set any key, such as policy.settings.normalise=false. May be repeated.",
            show_default=False,
        ),
    ],
)
