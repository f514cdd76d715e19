"""Data sets that code of the user returns: `package.module:factory`."""

import inspect
from collections.abc import Collection
from inspect import Parameter
from typing import Any

from torch.utils.data import Dataset as TorchDataset

from unstale.errors import UserError
from unstale.plugins import object_of
from unstale.training.datasets.data import Data
from unstale.training.datasets.dataset import Dataset
from unstale.training.datasets.own import OwnData
from unstale.training.datasets.source import Source

_DEFAULTS = {"path": None, "normalise": "standard", "column": None}  # a factory must take another value


def read(source: Source) -> Data:
    """The data set that `source.name` names, or the result of the factory that it names.

    A factory receives those of the keywords cache (a Path), download (a bool), path (a Path or None), normalise (a
    str) and column (a str or None) that it takes, and normalises by itself. It returns a `Dataset` (labelled tensors),
    or a data set of PyTorch with any inputs and targets for training, or a pair of them for training and test: see
    `OwnData`.
    Exceptions of its code are not caught.
    """
    thing = object_of("data", source.name)
    is_made = isinstance(thing, Dataset | TorchDataset | tuple)
    return _checked(source.name, thing if is_made else _called(source, thing))


def _called(source: Source, factory: Any) -> object:
    """The result of a factory. Raises UserError for one that needs another argument, or is none."""
    if not callable(factory):
        raise UserError(
            f"data set {source.name!r} is of type {type(factory).__name__}, expected a data set or a function that "
            "makes one"
        )
    arguments = {
        "cache": source.folder,
        "download": source.download,
        "path": source.path,
        "normalise": source.normalise,
        "column": source.column,
    }
    arguments = _taken(source.name, arguments, inspect.signature(factory).parameters.values())
    return factory(**arguments)


def _checked(name: str, made: object) -> Data:
    if isinstance(made, Dataset):
        return made
    parts = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if all(isinstance(part, TorchDataset) or part is None for part in parts) and parts[0] is not None:
        return OwnData(name, *parts)
    raise UserError(
        f"data set {name!r} is made as {_described(made)}, expected an unstale.training.datasets.Dataset, or a "
        "torch.utils.data.Dataset, or a pair of those for training and test"
    )


def _described(made: object) -> str:
    if isinstance(made, tuple):
        return f"a tuple of {', '.join(type(part).__name__ for part in made)}"
    return f"a {type(made).__name__}"


def _taken(name: str, arguments: dict[str, Any], parameters: Collection[Parameter]) -> dict[str, Any]:
    """The arguments that a factory takes. Raises UserError if it needs another one, or lacks one that was set."""
    _check_required(name, arguments, parameters)
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters):
        return arguments
    keywords = {parameter.name for parameter in parameters if parameter.kind is not Parameter.POSITIONAL_ONLY}
    for key, default in _DEFAULTS.items():
        if key not in keywords and arguments[key] != default:
            raise UserError(f"data set {name!r} takes no {key}, got {str(arguments[key])!r}; leave it out")
    return {key: value for key, value in arguments.items() if key in keywords}


def _check_required(name: str, arguments: dict[str, Any], parameters: Collection[Parameter]) -> None:
    for parameter in parameters:
        is_variadic = parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
        if parameter.default is Parameter.empty and parameter.name not in arguments and not is_variadic:
            raise UserError(
                f"data set {name!r} needs {parameter.name!r}; expected a factory that needs nothing "
                f"but {', '.join(arguments)}"
            )
