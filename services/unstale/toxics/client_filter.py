"""Selection of clients by id, by a random share, or by the classes of their data."""

import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from textwrap import shorten
from typing import Any, Literal, Protocol
from zlib import crc32

from pydantic import Field, RootModel, StrictInt, StrictStr, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from unstale.errors import UserError
from unstale.seeds import Stream, stream
from unstale.settings.values import Section

EXPECTED = (
    'all, a list of ids and ranges like [0, 3, "10-19"], {share: 0.3}, {holding: 5, top: 10} for those ten that '
    "hold the most of class 5, or {smallest_class: 5}"
)
SHOWN_MAX = 80  # characters of a list in a message

_ID_OR_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


class ClientInfo(Protocol):
    """The clients of one run. Their data is loaded on first use."""

    @property
    def clients(self) -> int:
        """Number of clients N; ids are 0 <= id < N."""
        ...

    @property
    def classes(self) -> int:
        """Number of classes of the data set."""
        ...

    def holders(self, label: int) -> Sequence[int]:
        """Clients with examples of a class, those with the most first, ties by id."""
        ...

    def smallest_class(self, client_id: int) -> int:
        """The smallest class label of a client's training examples."""
        ...


class Share(Section, strict=True):
    """A random share of the clients, drawn once: rounded half up, at least one client."""

    share: float = Field(gt=0, le=1)


class Holding(Section, strict=True):
    """Clients with training examples of a class. top: number of those with the most."""

    holding: int = Field(ge=0)
    top: int | None = Field(None, ge=1)


class SmallestClass(Section, strict=True):
    """Clients with training examples of this class and of no smaller one.

    Source: Gradient inversion (Wang & Gao, 2023), docs/methods/partitions.md#affected-clients
    """

    smallest_class: int = Field(ge=0)


class ClientFilter(
    RootModel[Literal["all"] | tuple[StrictInt | StrictStr, ...] | Share | Holding | SmallestClass], frozen=True
):
    """A selection of clients. Its plain data: see `EXPECTED`."""

    @model_validator(mode="wrap")
    @classmethod
    def _one_message(cls, data: Any, handler: Any) -> Any:
        try:
            made = handler(data)
            if isinstance(made.root, tuple):
                _ranges(made.root)
        except (ValidationError, ValueError):
            raise PydanticCustomError("expected", "{expected}", {"expected": EXPECTED}) from None
        return made

    def resolve(
        self, client_info: ClientInfo, seed: int, name: str, among: AbstractSet[int] | None = None
    ) -> frozenset[int]:
        """The ids of the clients.

        Args:
            name: of the group or toxic, which keys the draw of a share.
            among: ids to select from; None for all clients of the run.

        Raises:
            UserError: for ids that do not exist, or an empty selection.
        """
        candidates = frozenset(range(client_info.clients) if among is None else among)
        match self.root:
            case Share(share=share):
                clients = _drawn(share, candidates, seed, name)
            case Holding(holding=label, top=top):
                self._check_class(label, client_info)
                holders = [client_id for client_id in client_info.holders(label) if client_id in candidates]
                clients = frozenset(holders[:top])
            case SmallestClass(smallest_class=label):
                self._check_class(label, client_info)
                clients = frozenset(i for i in candidates if client_info.smallest_class(i) == label)
            case tuple(entries):
                clients = self._listed(entries, client_info) & candidates
            case _:
                clients = candidates
        if not clients:
            raise UserError(f"clients is {self._words}, which matches nobody; name others")
        return clients

    @property
    def _words(self) -> str:
        """The filter as in a file, cut to `SHOWN_MAX` characters."""
        root = self.root
        if isinstance(root, str):
            return root
        if isinstance(root, tuple):
            return shorten(f"[{', '.join(map(str, root))}]", SHOWN_MAX, placeholder="...]")
        settings = root.model_dump(exclude_none=True).items()
        return f"{{{', '.join(f'{key}: {value}' for key, value in settings)}}}"

    def _check_class(self, label: int, client_info: ClientInfo) -> None:
        if label >= client_info.classes:
            raise UserError(
                f"clients is {self._words}, but the data has {client_info.classes} classes, "
                f"expected one of 0 to {client_info.classes - 1}"
            )

    def _listed(self, entries: Sequence[int | str], client_info: ClientInfo) -> frozenset[int]:
        ranges = _ranges(entries)
        highest = max(ids[-1] for ids in ranges)
        if highest >= client_info.clients:
            raise UserError(
                f"clients is {self._words}, but client {highest} is none of the {client_info.clients} clients "
                f"of this run, whose ids are 0 to {client_info.clients - 1}"
            )
        return frozenset().union(*ranges)


def _ranges(entries: Sequence[int | str]) -> list[range]:
    """The ids of a list, a range for each entry. Raises ValueError."""
    ranges = []
    for entry in entries:
        match = _ID_OR_RANGE.fullmatch(str(entry))
        ids = range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)
        if not ids:
            raise ValueError(entry)
        ranges.append(ids)
    if not ranges:
        raise ValueError("no ids")
    return ranges


def _drawn(share: float, candidates: frozenset[int], seed: int, name: str) -> frozenset[int]:
    ordered = sorted(candidates)
    rng = stream(seed, Stream.AUDIENCES, crc32(name.encode()))
    count = max(1, int(share * len(ordered) + 0.5))
    return frozenset(ordered[index] for index in rng.permutation(len(ordered))[:count])


EVERYONE = ClientFilter("all")
