"""Data sets that a user's own code makes: `package.module:factory`."""

import inspect

from unstale.errors import UserError
from unstale.training.datasets.dataset import Dataset
from unstale.training.datasets.source import Source
from unstale.training.import_factory import import_factory


def is_factory(name: str) -> bool:
    """Whether a name is that of code."""
    return ":" in name


def read(source: Source) -> Dataset:
    """What the callable that `source.name` names returns.

    It is called with those keywords of cache (a Path), download (a bool), path (a Path or None), normalise (a str) and
    column (a str or None) that it takes; normalising is its own business. What its code raises is not caught.
    """
    factory = import_factory("data set", source.name)
    parameters = inspect.signature(factory).parameters.values()
    offered = {
        "cache": source.folder,
        "download": source.download,
        "path": source.path,
        "normalise": source.normalise,
        "column": source.column,
    }
    taken = {parameter.name for parameter in parameters if parameter.kind is not parameter.POSITIONAL_ONLY}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        taken.update(offered)
    for parameter in parameters:
        if (
            parameter.default is parameter.empty
            and parameter.name not in offered
            and not _variadic(parameter)
        ):
            raise UserError(
                f"data set {source.name!r} needs {parameter.name!r}; expected a factory that needs nothing "
                f"but {', '.join(offered)}"
            )
    for key, usual in (("path", None), ("normalise", "standard"), ("column", None)):
        if key not in taken and offered[key] != usual:
            raise UserError(
                f"data set {source.name!r} takes no {key}, got {str(offered[key])!r}; leave it out"
            )
    made = factory(**{key: value for key, value in offered.items() if key in taken})
    if not isinstance(made, Dataset):
        raise UserError(
            f"data set {source.name!r} is made as a {type(made).__name__}, expected an "
            "unstale.training.datasets.Dataset"
        )
    return made


def _variadic(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
