"""Reads the scenario of a run and applies it to the run's clients.

Imports torch only if a scenario selects clients by their classes.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import resources
from importlib.resources.abc import Traversable
from inspect import isfunction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from unstale.config.loader import Loader
from unstale.config.settings import PRIVATE, Settings
from unstale.errors import UserError, nearest
from unstale.plugins import GROUPS, is_built_in, is_code, name_of, names, object_of
from unstale.settings.learning import DataSettings, PartitionSettings
from unstale.toxics.client_filter import ClientInfo
from unstale.toxics.device import Devices
from unstale.toxics.scenario import Conditions, Scenario
from unstale.toxics.toxic import Toxic

if TYPE_CHECKING:
    from unstale.training.partition import Indices

SUFFIXES = (".yaml", ".yml")
FILE_KEYS = ("file", "trace")  # keys of a scenario whose texts name files
SCENARIO_BYTES_MAX = 1_000_000  # far more than anybody writes by hand


def ready_names() -> tuple[str, ...]:
    """The scenarios that come with the package, sorted."""
    return tuple(sorted(file.name.removesuffix(".yaml") for file in _ready().iterdir() if file.name.endswith(".yaml")))


def read(name: str) -> Scenario:
    """A scenario by the name of a ready one, of a mapping in code, or the path of a YAML file. Raises UserError."""
    return _parsed(_source(name))


def conditions(settings: Settings, *, of: ClientInfo | None = None) -> Conditions:
    """The conditions of the run's clients; no delays and faults without a scenario.

    of: The clients, if the caller has them already. Raises UserError.
    """
    chosen = settings.scenario
    if chosen.name is None:
        return Conditions(devices=Devices(settings.seed, {}))
    source = _source(chosen.name)
    if of is not None:
        return _settled(source, chosen.time_scale, of, settings.seed)
    return _conditions(source, chosen.time_scale, settings.clients, settings.seed, settings.data, settings.partition)


def client_info(settings: Settings) -> ClientInfo:
    """The clients of a run. Reads the data when it is needed; raises UserError then if it is private."""
    return _Clients(settings.clients, settings.seed, settings.data, settings.partition)


def check(settings: Settings) -> Conditions:
    """The conditions as far as they do not depend on the data. Raises UserError.

    For a scenario that selects clients by their classes: the scenario is valid, and all clients are available.
    """
    try:
        return conditions(settings, of=_Unknown(settings.clients))
    except _DataIsElsewhere:
        return Conditions(devices=Devices(settings.seed, {}), availability=(1.0,) * settings.clients)


# --- clients ---


class Held:
    """Clients with known data. counts_NC: [N, C], examples of class c at client i."""

    def __init__(self, counts_NC: "Indices") -> None:
        self._counts_NC = counts_NC

    @property
    def clients(self) -> int:
        return len(self._counts_NC)

    @property
    def classes(self) -> int:
        return int(self._counts_NC.shape[1])

    def holders(self, label: int) -> Sequence[int]:
        """Clients with the most examples first; of equals the higher id."""
        count_N = self._counts_NC[:, label].tolist()
        return sorted((i for i, count in enumerate(count_N) if count), key=lambda i: (count_N[i], i), reverse=True)

    def smallest_class(self, client_id: int) -> int:
        return int((self._counts_NC[client_id] > 0).argmax())


@dataclass(frozen=True)
class _Clients:
    clients: int
    seed: int
    data: DataSettings
    partition: PartitionSettings

    @property
    def classes(self) -> int:
        return self._examples_of.classes

    def holders(self, label: int) -> Sequence[int]:
        return self._examples_of.holders(label)

    def smallest_class(self, client_id: int) -> int:
        return self._examples_of.smallest_class(client_id)

    @cached_property
    def _examples_of(self) -> Held:
        from unstale.config.data import ClientData, read_dataset  # imports torch
        from unstale.training.datasets import labelled
        from unstale.training.partition import label_counts

        if self.data.private or self.data.name == PRIVATE:
            raise UserError(
                "the scenario selects clients by their classes, but the data is private to the clients; choose "
                "another scenario.name"
            )
        settings = Settings(clients=self.clients, seed=self.seed, data=self.data, partition=self.partition)
        data = labelled(read_dataset(settings.data))
        return Held(label_counts(ClientData.of(settings, data).train(), data.train.labels_N.numpy(), data.classes))


class _DataIsElsewhere(Exception):  # noqa: N818  (no error)
    """The scenario depends on the data."""


@dataclass(frozen=True)
class _Unknown:
    clients: int

    @property
    def classes(self) -> int:
        raise _DataIsElsewhere

    def holders(self, _label: int) -> Sequence[int]:
        raise _DataIsElsewhere

    def smallest_class(self, _client_id: int) -> int:
        raise _DataIsElsewhere


# --- files ---


@dataclass(frozen=True, slots=True)
class _Source:
    """The text of a scenario."""

    words: str  # name, for people
    text: str
    folder: str  # of relative paths in the text


@lru_cache(maxsize=4)  # parts of a process use the same one
def _conditions(
    source: _Source, time_scale: float, clients: int, seed: int, data: DataSettings, partition: PartitionSettings
) -> Conditions:
    return _settled(source, time_scale, _Clients(clients, seed, data, partition), seed)


def _settled(source: _Source, time_scale: float, clients: ClientInfo, seed: int) -> Conditions:
    scenario = _parsed(source)
    try:
        return scenario.scaled(time_scale).settled(clients, seed)
    except UserError as error:
        raise UserError(f"{source.words}, {error}") from None


def _ready() -> Traversable:
    return resources.files("unstale") / "scenarios"


def _source(name: str) -> _Source:
    is_path = name.endswith(SUFFIXES) or "/" in name
    is_ready = not is_path and is_built_in("scenario", name, ready_names())
    if not is_path and not is_ready and is_code("scenario", name):
        return _Source(f"scenario {name}", _written(name), str(Path.cwd()))
    file: Traversable = _expanded(name) if is_path else _ready() / f"{name}.yaml"
    if not is_path and not is_ready:
        known = names(GROUPS["scenario"], ready_names(), kind="scenario")
        raise UserError(
            f"unknown scenario {name!r}{nearest(name, known)}; a file of your own ends in .yaml, and "
            "`unstale scenario list` tells what the ready ones do"
        )
    words = f"scenario {name}"
    folder = str(_expanded(name).absolute().parent) if is_path else str(_ready())
    return _Source(words, _text(file, name, words), folder)


def _written(name: str) -> str:
    """The mapping that a name of code names, or that its function returns, as the text of a file. Raises UserError."""
    data = object_of("scenario", name)
    if isfunction(data):
        try:
            data = data()
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"scenario {name!r} cannot be made ({type(error).__name__}: {error})") from error
    if not isinstance(data, Mapping):
        raise UserError(
            f"scenario {name!r} is of type {type(data).__name__}, expected a mapping with description and groups, as "
            "in a YAML file"
        )
    try:
        return yaml.dump(_named(data), Dumper=_Dumper)
    except yaml.YAMLError as error:
        raise UserError(f"scenario {name!r} holds what YAML does not: {' '.join(str(error).split())}") from None


def _named(data: Any) -> Any:
    """The data with names in place of toxics and their classes."""
    if isinstance(data, Toxic):
        return {"type": name_of("toxic", type(data)), **data.model_dump(mode="json", exclude_unset=True)}
    if isinstance(data, type):
        return name_of("toxic", data)
    if isinstance(data, Mapping):
        return {key: _named(value) for key, value in data.items()}
    return [_named(one) for one in data] if isinstance(data, list | tuple) else data


class _Dumper(yaml.SafeDumper):
    """Writes an object that occurs twice in full each time."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True


def _text(file: Traversable, name: str, words: str) -> str:
    """The content of a scenario's file. Raises UserError."""
    try:
        with file.open("rb") as opened:
            raw = opened.read(SCENARIO_BYTES_MAX + 1)
        text = raw.decode("utf-8")
    except OSError as error:
        raise UserError(f"cannot read {words}: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError:
        raise UserError(f"cannot read {words}: it is not UTF-8 text, expected YAML") from None
    except ValueError:  # a null character, for one
        raise UserError(f"scenario.name is {name!r}, expected the name of a ready scenario or a path") from None
    if len(raw) > SCENARIO_BYTES_MAX:
        raise UserError(f"{words} has more than {SCENARIO_BYTES_MAX:,} bytes, expected a few groups; write ranges")
    return text


def _parsed(source: _Source) -> Scenario:
    try:
        data = yaml.load(source.text, _Loader)  # noqa: S506  (a SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UserError(f"{source.words}{line}: this is not plain YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"{source.words}: this is not plain YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise UserError(f"{source.words}: mappings lie too deep in one another") from None
    if data is None:
        raise UserError(f"{source.words} is empty, expected a list of groups")
    return Scenario.parsed(_with_whole_paths(data, Path(source.folder)), source.words)


class _Loader(Loader):
    """Refuses a mapping that names a key twice, of which YAML would take the last without a word, and what lets a
    document contain itself, grow without bound or name types.
    """

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if getattr(event, "anchor", None) or getattr(event, "tag", None):
            raise yaml.MarkedYAMLError(
                problem="anchors (&), aliases (*) and tags (!) are not read, write everything out",
                problem_mark=event.start_mark,
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        counts = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        for key, _ in reversed(node.value):
            if isinstance(key, yaml.ScalarNode) and counts[key.value] > 1:
                raise yaml.MarkedYAMLError(problem=f"key {key.value!r} is given twice", problem_mark=key.start_mark)
        return super().construct_mapping(node, deep)


def _expanded(text: str) -> Path:
    """A path with `~` and `~user` expanded, if there are such."""
    try:
        return Path(text).expanduser()
    except (RuntimeError, ValueError):  # no such user, or a null character
        return Path(text)


def _with_whole_paths(data: Any, folder: Path) -> Any:
    """The data with paths made absolute, relative to the folder of the file."""
    if isinstance(data, dict):
        return {
            key: str(folder / _expanded(value))
            if key in FILE_KEYS and isinstance(value, str)
            else _with_whole_paths(value, folder)
            for key, value in data.items()
        }
    return [_with_whole_paths(one, folder) for one in data] if isinstance(data, list) else data
