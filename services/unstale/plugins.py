"""Parts by name: built-in classes, entry points of other packages, `package.module:name`, and objects of this process.

A part is a policy, compensator, toxic, trigger, selector, partition, local training or objective, and has a base class
and a `Registry`. Models, data sets and scenarios are any objects.
"""

import inspect
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from unstale import part_settings
from unstale.errors import UserError, unknown_name
from unstale.settings import part
from unstale.settings.values import NAME_MAX, Section

T = TypeVar("T")

CODE = "package.module:name"
"""The form of the name of an object that any process can import."""

_LOCAL = "<{}>"
"""The form of the name of an object that other processes cannot import."""

_NAME = re.compile(rf"[A-Za-z0-9_.-]{{1,{NAME_MAX}}}")

_objects: dict[tuple[str, str], Any] = {}
"""Objects of this process, by kind and name."""


# --- objects of this process ---


def name_of(kind: str, thing: object) -> str:
    """The name of an object for the settings; a text is returned unchanged.

    An object that a module has is `package.module:name`, which any process can import. Another one, such as a class of
    a notebook, has a name of this process: that of its decorator, or one like `<Mine>`.

    Args:
        kind: One of `GROUPS`, or app.
        thing: A name, or an object in its place.
    """
    if isinstance(thing, str):
        return thing
    if importable := _importable(thing):
        return importable
    registered = (name for (its_kind, name), known in _objects.items() if known is thing and its_kind == kind)
    return next(registered, None) or _register_local(kind, thing)


def _register_local(kind: str, thing: object) -> str:
    """Register an object that no module has. Returns its name."""
    own = getattr(thing, "__qualname__", kind if type(thing).__module__ == "builtins" else type(thing).__qualname__)
    own = own.rpartition(".")[2].strip("<>")[:64]
    names_of_it = (_LOCAL.format(own if number == 1 else f"{own} {number}") for number in range(1, len(_objects) + 2))
    name = next(name for name in names_of_it if (kind, name) not in _objects)
    _objects[kind, name] = thing
    return name


def registering(kind: str) -> Callable[[str], Callable[[T], T]]:
    """The decorator of a kind: `@unstale.policy("mine")` registers a class or function in this process."""

    def named(name: str) -> Callable[[T], T]:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise UserError(
                f"the name of a {_word(kind)} is {name!r:.80}, expected 1 to {NAME_MAX} characters of A-Za-z0-9_.- in "
                f'parentheses behind the decorator, such as @unstale.{_DECORATORS.get(kind, kind)}("mine")'
            )
        return partial(_register, kind, name)

    return named


def _register(kind: str, name: str, thing: T) -> T:
    _objects[kind, name] = thing
    return thing


_DECORATORS = {"training": "local_training"}  # `unstale.training` is a package

compensator = registering("compensator")
data = registering("data")
local_training = registering("training")
model = registering("model")
objective = registering("objective")
partition = registering("partition")
policy = registering("policy")
scenario = registering("scenario")
selector = registering("selector")
toxic = registering("toxic")
tracker = registering("tracker")
trigger = registering("trigger")


def is_local(kind: str, name: str) -> bool:
    """Whether a name is that of an object which other processes cannot import."""
    return (kind, name) in _objects and _importable(_objects[kind, name]) is None


def modules() -> list[str]:
    """The modules that another process imports to have the registered objects of this one, but for local objects."""
    importable = filter(None, map(_importable, _objects.values()))
    return sorted({name.partition(":")[0] for name in importable})


def _importable(thing: object) -> str | None:
    """`package.module:name` of an object; None if no module but the program itself has it."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if isinstance(module, str) and isinstance(name, str):
        names = [f"{module}:{name}"] if _attributes(module).get(name) is thing else []
    elif isinstance(thing, int | float):
        names = []  # small numbers are attributes of many modules
    else:
        names = _names_in_modules(thing)
    return next((name for name in names if len(name) <= NAME_MAX), None)


def _names_in_modules(thing: object) -> list[str]:
    """The names under which modules have an object that has none of its own."""
    return [
        f"{module}:{attribute}"
        for module in tuple(sys.modules)
        for attribute, value in tuple(_attributes(module).items())
        if value is thing and module != "builtins" and not attribute.startswith("_")
    ]


def _attributes(module: str) -> Mapping[str, Any]:
    """The attributes of a module that another process can import; none of the program itself."""
    attributes = getattr(sys.modules.get(module), "__dict__", {})
    return attributes if module != "__main__" and attributes.get("__spec__") is not None else {}


# --- code by name ---


def is_code(kind: str, name: str) -> bool:
    """Whether a name is that of code or of an object of this process, and not of a built-in part.

    Of a kind with a `Registry`, an entry point does not count: the registry imports it.
    """
    if ":" in name or name.startswith("<") or (kind, name) in _objects:
        return True
    return kind in _WITHOUT_BASE and bool(entry_points(group=GROUPS[kind], name=name))


def is_built_in(kind: str, name: str, built_in: Collection[str]) -> bool:
    """Whether a name is that of a built-in part. Raises UserError if an object of this process has it, too."""
    if name in built_in and (kind, name) in _objects:
        raise UserError(f"{_word(kind)} {name!r} is built in; register your own by another name")
    return name in built_in


def object_of(kind: str, name: str) -> Any:
    """The object of a name for which `is_code` holds. The module is also searched in the current folder.

    Raises UserError.
    """
    if (kind, name) in _objects:
        return _objects[kind, name]
    word = _word(kind)
    if name.startswith("<"):
        raise UserError(
            f"{word} {name!r} is an object of the process that started the run, which this process does not have; "
            f"define it in a module, and name it {CODE}"
        )
    if ":" not in name:
        return _imported(kind, entry_point(kind, name, GROUPS[kind], ()))
    module_name, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), attribute)):
        module_name = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise UserError(
            f"{word} {name!r} is no name of an object, expected {CODE}, such as {module_name}:{attribute or kind}"
        )
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # last, so that no file there hides another module
    try:
        module = import_module(module_name)
    except Exception as error:
        raise UserError(
            f"{word} {name!r} cannot be imported ({_reason(error)}); {_remedy(module_name, error)}"
        ) from error
    try:
        return getattr(module, attribute)
    except AttributeError:
        close = get_close_matches(attribute, vars(module), n=1, cutoff=0.75)
        hint = f"; did you mean {close[0]!r}?" if close else f", expected {CODE}"
        raise UserError(f"{word} {name!r}: {module_name} has no {attribute!r}{hint}") from None


def _remedy(module_name: str, error: Exception) -> str:
    """Advice on a module that cannot be imported."""
    if isinstance(error, ModuleNotFoundError) and error.name == "flwr":
        return "install Flower with pip install 'unstale[flower]'"
    if isinstance(error, ModuleNotFoundError) and error.name and f"{module_name}.".startswith(f"{error.name}."):
        return f"expected {CODE}, in the current folder or one on PYTHONPATH"
    return f"{_source_line(error)}; mend the module"


def _source_line(error: Exception) -> str:
    """The file and line of the user's code that raised an exception."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}"
    return f"{frame.filename}, line {frame.lineno}"


def _word(kind: str) -> str:
    return "data set" if kind == "data" else kind


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc']))} is {first['input']!r}: {first['msg']}"
    text = " ".join(str(error).split())
    if isinstance(error, ImportError | AttributeError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


# --- registries ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry(Generic[T]):
    """The parts of one kind. Plug-ins and objects of this process cannot replace a built-in class."""

    kind: str
    base: type[Any]
    where: str  # the module from which a user imports `base`, for messages
    built_in: Mapping[str, type[T]]
    other_names: tuple[str, ...] = ()  # that have no class, for messages

    @property
    def group(self) -> str:
        """Of entry points, such as `unstale.policies`."""
        return GROUPS[self.kind]

    def names(self) -> tuple[str, ...]:
        """All names but those of code, sorted. Imports nothing."""
        return names(self.group, self.built_in, kind=self.kind)

    def is_built_in(self, name: str) -> bool:
        """Whether a name is that of a built-in part. Raises UserError if an object of this process has it, too."""
        return is_built_in(self.kind, name, self.built_in)

    def find(self, name: str) -> type[T]:
        """The class of a part.

        Raises UserError for an unknown name, and for a class that cannot be imported, has another base or lacks a
        method.
        """
        if self.is_built_in(name):
            return self.built_in[name]
        described, thing = self._loaded(name)
        if not (inspect.isclass(thing) and issubclass(thing, self.base)):
            raise UserError(f"{described}, expected a class derived from {self._base_name}")
        return self._complete(described, thing)

    def factory(self, name: str) -> Callable[..., T]:
        """The class of a part, or a function that makes it or returns a part that was made. Raises UserError."""
        if self.is_built_in(name):
            return self.built_in[name]
        described, thing = self._loaded(name)
        if isinstance(thing, self.base):
            return lambda: thing
        if inspect.isfunction(thing) or inspect.ismethod(thing) or isinstance(thing, partial):
            return thing
        if not (inspect.isclass(thing) and issubclass(thing, self.base)):
            raise UserError(
                f"{described}, expected a class derived from {self._base_name}, an object of such a class, or a "
                "function that returns one"
            )
        return self._complete(described, thing)

    def check_allowed(self, name: str, code: Collection[str] | None) -> None:
        """Raise UserError for a plug-in or code that only another machine names.

        code: names that this machine's user gave; None where all are.
        """
        if code is not None and name not in code and not self.is_built_in(name):
            raise UserError(
                f"{self.kind} {name!r} is code, which only this machine's own configuration may name; give it the same "
                f"{self.kind}.name, or choose one of {', '.join(self.built_in)} on the server"
            )

    def make(self, section: Section, *, shared: Collection[str] = (), **context: Any) -> T:
        """The part that a section chooses. Arguments as of `part.made`. Raises UserError."""
        name = part.name_of(section)
        factory = self.factory(name)
        own = part_settings.own(self.kind, name, factory, section, context)
        make = partial(part.made, factory, section, self.kind, shared=shared, own=own, **context)
        if name in self.built_in:
            return make()
        self._check_parameters(name, factory, section, {*own, *context})
        return self.called(name, make)

    def called(self, name: str, make: Callable[[], object]) -> T:
        """The part that a user's code makes. Raises UserError if it fails, or makes something else."""
        try:
            made = make()
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"{self.kind} {name!r} cannot be made ({_reason(error)})") from error
        if not isinstance(made, self.base):
            raise UserError(f"{self.kind} {name!r} is made as a {type(made).__name__}, expected {self._base_name}")
        checked: T = made
        return checked

    @property
    def _base_name(self) -> str:
        return f"{self.where}.{self.base.__name__}"

    def _loaded(self, name: str) -> tuple[str, Any]:
        """A description for messages, and the object, of a name that is not built in. Raises UserError."""
        if is_code(self.kind, name):
            thing = object_of(self.kind, name)
            words = f"the class {thing.__qualname__}" if inspect.isclass(thing) else f"of type {type(thing).__name__}"
            return f"{self.kind} {name!r} is {words}", thing
        point = entry_point(self.kind, name, self.group, (*self.built_in, *self.other_names))
        return f"{self.kind} {name!r} is {point.value}", _imported(self.kind, point)

    def _complete(self, described: str, thing: Any) -> type[T]:
        """The class. Raises UserError where it lacks a method or an attribute that its base requires."""
        missing = sorted(getattr(thing, "__abstractmethods__", ()))
        missing += [
            name
            for each in self.base.__mro__
            for name, annotation in _annotations(each).items()
            if _is_class_variable(annotation) and not hasattr(thing, name) and name not in _OPTIONAL
        ]
        if missing:
            raise UserError(f"{described}, which does not define {', '.join(missing)}; define it in the class")
        complete: type[T] = thing
        return complete

    def _check_parameters(self, name: str, factory: Callable[..., T], section: Section, given: Collection[str]) -> None:
        """Raise UserError for a parameter without a value, and for a key that is only annotated.

        given: names of values from elsewhere than keys of the section.
        """
        keys = {*type(section).model_fields, *given} - {"name", "settings"}
        parameters = inspect.signature(factory).parameters
        for key, parameter in parameters.items():
            is_variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            if key not in keys and parameter.default is parameter.empty and not is_variadic:
                raise UserError(
                    f"{self.kind} {name!r} needs {key!r}, and none was given; add {self.kind}.settings.{key}, or give "
                    "it a default"
                )
        declared = _annotations(factory) if inspect.isclass(factory) else {}
        for key in keys & declared.keys() - parameters.keys():
            if not _is_class_variable(declared[key]):
                raise UserError(
                    f"{self.kind} {name!r} declares {key!r}, but does not take it; decorate the class with "
                    "@dataclass(frozen=True, kw_only=True)"
                )


def _annotations(owner: type) -> Mapping[str, Any]:
    """The annotations of a class without its bases; none where they name something that is not there."""
    try:
        return inspect.get_annotations(owner)
    except NameError:
        return {}


def _is_class_variable(annotation: Any) -> bool:
    return str(annotation).startswith(("typing.ClassVar", "ClassVar"))


_OPTIONAL = ("source",)  # a docstring may say it instead

GROUPS = {
    "compensator": "unstale.compensators",
    "data": "unstale.data",
    "model": "unstale.models",
    "objective": "unstale.objectives",
    "partition": "unstale.partitions",
    "policy": "unstale.policies",
    "scenario": "unstale.scenarios",
    "selector": "unstale.selectors",
    "toxic": "unstale.toxics",
    "tracker": "unstale.trackers",
    "training": "unstale.trainings",
    "trigger": "unstale.triggers",
}
"""Groups of entry points, by kind."""

_WITHOUT_BASE = ("data", "model", "scenario")
"""Kinds without a `Registry`."""


def names(group: str, built_in: Iterable[str], *, kind: str = "") -> tuple[str, ...]:
    """All names of a group, the built-in ones and those of this process, sorted. Imports nothing."""
    own = (name for its_kind, name in _objects if its_kind == kind and not name.startswith("<"))
    return tuple(sorted({*built_in, *own, *(point.name for point in entry_points(group=group))}))


def entry_point(kind: str, name: str, group: str, built_in: Iterable[str]) -> EntryPoint:
    """The only entry point of a name. Imports nothing. built_in: names for the message.

    Raises UserError for a name that no package or several packages register.
    """
    points = entry_points(group=group, name=name)
    if not points:
        raise unknown_name(_word(kind), name, names(group, built_in, kind=kind))
    (point, *others) = points
    if others:
        raise UserError(f"{_word(kind)} {name!r} is registered by several packages; uninstall all but one of them")
    return point


def _imported(kind: str, point: EntryPoint) -> Any:
    try:
        return point.load()
    except Exception as error:
        raise UserError(
            f"{_word(kind)} {point.name!r} cannot be imported from {point.value}: {_reason(error)}"
        ) from error


# --- for people ---


def summary(part_class: type) -> str:
    """The first paragraph of a part's docstring, as one line."""
    return (inspect.getdoc(part_class) or "").partition("\n\n")[0].replace("\n", " ")


def source(part_class: type) -> str:
    """What defines the method of a part, or of its base: the attribute `source`, or the `Source:` of the docstring."""
    for each in part_class.__mro__:
        documented = inspect.cleandoc(each.__doc__ or "").partition("\nSource: ")[2]
        if own := vars(each).get("source") or " ".join(documented.split()):
            return str(own)
    return ""
