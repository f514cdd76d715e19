"""Which clients a group or a toxic is about: all, by id, a share of them, or those that hold a class."""

import re
from collections.abc import Set as AbstractSet
from textwrap import shorten
from typing import Any, Literal
from zlib import crc32

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    StrictInt,
    StrictStr,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from unstale.errors import UserError
from unstale.seeds import Stream, stream
from unstale.toxics.client_info import ClientInfo

EXPECTED = (
    'all, a list of ids and ranges like [0, 3, "10-19"], {share: 0.3}, {holding: 5, top: 10} for those ten that '
    "hold the most of class 5, or {smallest_class: 5}"
)


_ID_OR_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
SHOWN_MAX = 80  # characters of a list that a sentence repeats


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Share(_Part):
    """So many of the clients, drawn once. share: rounded half up, but one client at least."""

    share: float = Field(gt=0, le=1)


class Holding(_Part):
    """Those that hold training examples of a class. top: only so many, who hold the most."""

    holding: int = Field(ge=0)
    top: int | None = Field(None, ge=1)


class SmallestClass(_Part):
    """Those that hold training examples of this class and of none before it.

    Source: Gradient inversion (Wang & Gao, 2023), docs/methods/partitions.md#affected-clients
    """

    smallest_class: int = Field(ge=0)


class ClientFilter(
    RootModel[Literal["all"] | tuple[StrictInt | StrictStr, ...] | Share | Holding | SmallestClass]
):
    """Clients, described. As plain data: see `EXPECTED`."""

    model_config = ConfigDict(frozen=True)

    @model_validator(mode="wrap")
    @classmethod
    def _or_one_sentence(cls, data: Any, handler: Any) -> Any:
        try:
            made = handler(data)
            if isinstance(made.root, tuple):
                made.ids()
        except (ValidationError, ValueError):
            raise PydanticCustomError("expected", "{expected}", {"expected": EXPECTED}) from None
        return made

    def resolve(
        self, client_info: ClientInfo, seed: int, name: str, among: AbstractSet[int] | None = None
    ) -> frozenset[int]:
        """The clients' ids.

        seed: of the run. name: of the group or toxic, which keys the draw of a share. among: the clients that there
        are to choose from; None for all of the run. Raises UserError where that is nobody, or ids do not exist; whose
        clients they are is not said there.
        """
        candidates = frozenset(range(client_info.clients) if among is None else among)
        found = self._chosen(client_info, seed, name, candidates)
        if not found:
            raise UserError(f"clients is {self.words}, which matches nobody; name others")
        return found

    @property
    def words(self) -> str:
        """As it stands in a file; what is long is cut."""
        root = self.root
        if isinstance(root, _Part):
            settings = root.model_dump(exclude_none=True).items()
            return f"{{{', '.join(f'{key}: {value}' for key, value in settings)}}}"
        return (
            root
            if isinstance(root, str)
            else shorten(f"[{', '.join(map(str, root))}]", SHOWN_MAX, placeholder="...]")
        )

    def ids(self) -> list[range]:
        """The ids of a list, a range an entry. Raises ValueError where one is no id and no range."""
        assert isinstance(self.root, tuple)
        ranges = []
        for entry in self.root:
            found = _ID_OR_RANGE.fullmatch(str(entry))
            if found is None:
                raise ValueError(entry)
            first, last = int(found[1]), int(found[2] or found[1])
            if first > last:
                raise ValueError(entry)
            ranges.append(range(first, last + 1))
        if not ranges:
            raise ValueError("no ids")
        return ranges

    def _chosen(
        self, client_info: ClientInfo, seed: int, name: str, candidates: frozenset[int]
    ) -> frozenset[int]:
        match self.root:
            case Share(share=share):
                ordered = sorted(candidates)
                rng = stream(seed, Stream.AUDIENCES, crc32(name.encode()))
                count = max(1, int(share * len(ordered) + 0.5))
                return frozenset(ordered[place] for place in rng.permutation(len(ordered))[:count])
            case Holding(holding=label, top=top):
                self._check_class(label, client_info)
                return frozenset([one for one in client_info.holders(label) if one in candidates][:top])
            case SmallestClass(smallest_class=label):
                self._check_class(label, client_info)
                return frozenset(one for one in candidates if client_info.smallest_class(one) == label)
            case tuple():
                ranges = self.ids()
                self._check_id(max(ids[-1] for ids in ranges), client_info)
                return frozenset(one for ids in ranges for one in ids) & candidates
            case _:
                return candidates

    def _check_class(self, label: int, client_info: ClientInfo) -> None:
        if label >= client_info.classes:
            raise UserError(
                f"clients is {self.words}, but the data has {client_info.classes} classes, "
                f"expected one of 0 to {client_info.classes - 1}"
            )

    def _check_id(self, client_id: int, client_info: ClientInfo) -> None:
        if client_id >= client_info.clients:
            raise UserError(
                f"clients is {self.words}, but client {client_id} is none of the {client_info.clients} clients "
                f"of this run, whose ids are 0 to {client_info.clients - 1}"
            )


EVERYONE = ClientFilter("all")
