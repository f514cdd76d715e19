"""Tables of `run.db`: their columns, SQL for them, and the checksums of their rows. Pure.

Every row carries a checksum, because SQLite has none of its own. It is taken of the values as SQLite gives them back.
"""

from collections.abc import Callable, Sequence
from functools import cache
from operator import itemgetter
from typing import Any

import msgpack
from xxhash import xxh3_64_intdigest

Values = tuple[Any, ...]

_PACK = msgpack.Packer().pack  # keeps its memory: `packb` has 256 KB mapped and given back each time


class ChangedRowError(Exception):
    """A row is not what was stored."""


def _nothing(_: Values) -> Values:
    return ()


class Table:
    """A table and its columns, in the order that values have here.

    Attributes:
        select: SQL for whole rows.
        total: SQL for the number of rows, and the sum of their checksums without the upper 32 bits.
    """

    def __init__(
        self,
        name: str,
        facts: Sequence[str],
        *,
        state: Sequence[str] = (),
        keys: Sequence[str] = (),
        checksum: str | None = "row_checksum",
        state_checksum: str | None = "state_checksum",
    ) -> None:
        """Describe a table.

        Args:
            name: Of the table.
            facts: Columns under `checksum`; the first is the key. They never change.
            state: Columns that change, under `state_checksum` together with the columns `keys` of the facts.
            keys: See there.
            checksum: Column; None for facts that no checksum covers.
            state_checksum: Column; None for state that no checksum covers.
        """
        self._name, self._facts, self._state = name, facts, state
        self._end = len(facts)
        self._keys: Callable[[Values], Values] = itemgetter(*map(facts.index, keys)) if keys else _nothing
        self._has_checksum = checksum is not None
        self._has_state_checksum = bool(state) and state_checksum is not None
        checksums = [checksum] if checksum else []
        state_checksums = [state_checksum] if state_checksum and state else []
        columns = [*facts, *checksums, *state, *state_checksums]
        names, places = ", ".join(columns), ", ".join("?" * len(columns))
        self.select = " ".join(("SELECT", names, "FROM", name))
        sums = [f"ifnull(sum({column} & 4294967295), 0)" for column in (*checksums, *state_checksums)]
        self.total = " ".join(("SELECT", ", ".join(["count(*)", " + ".join(sums) or "0"]), "FROM", name))
        self._into, self._row = " ".join(("INTO", name, f"({names}) VALUES")), f"({places})"
        self._numbers = {column: number for number, column in enumerate(columns)}

    def insert(self, rows: int, *, replace: bool = False) -> str:
        """SQL for so many rows. One statement for all: each gives the interpreter away, and waits to have it back."""
        return f"INSERT {'OR REPLACE ' if replace else ''}{self._into} {', '.join([self._row] * rows)}"

    @cache  # noqa: B019  (tables live as long as the process)
    def update(self, columns: tuple[str, ...], rows: int) -> str:
        """SQL that changes these columns, and the last one, of so many rows. Its values are those of `changed`."""
        names = [self._facts[0], *columns, list(self._numbers)[-1]]
        sets = ", ".join(f"{name} = new.column{number}" for number, name in enumerate(names[1:], start=2))
        row = f"({', '.join('?' * len(names))})"
        of_which = f"FROM (VALUES {', '.join([row] * rows)}) AS new WHERE {names[0]} = new.column1"
        return " ".join(("UPDATE", self._name, "SET", sets, of_which))

    @cache  # noqa: B019
    def changed(self, columns: tuple[str, ...]) -> Callable[[Values], Values]:
        """What `update` takes of a row that is `sealed`."""
        return itemgetter(0, *(self._numbers[name] for name in columns), len(self._numbers) - 1)

    def sealed(self, values: Values) -> Values:
        """With their checksums, as they are inserted."""
        if not self._state:
            return (*values, _checksum(values))
        facts, state = values[: self._end], values[self._end :]
        return (*facts, _checksum(facts), *state, _checksum((*self._keys(facts), *state)))

    def opened(self, values: Values) -> Values:
        """Without them, as they were selected. Raises ChangedRowError."""
        end = self._end
        facts = values[:end]
        if self._has_checksum:
            if _checksum(facts) != values[end]:
                raise self._changed(facts)
            end += 1
        if not self._state:
            return facts
        state = values[end : end + len(self._state)]
        if self._has_state_checksum and _checksum((*self._keys(facts), *state)) != values[-1]:
            raise self._changed(facts)
        return (*facts, *state)

    def _changed(self, facts: Values) -> ChangedRowError:
        return ChangedRowError(f"{self.row(facts)} is not what was stored")

    def row(self, values: Values) -> str:
        """What a row is called: the table, the key column and its value."""
        return f"{self._name} {self._facts[0]} {values[0]}"


def _checksum(facts: Sequence[Any]) -> int:
    return signed(xxh3_64_intdigest(_PACK(facts)))


def signed(checksum: int) -> int:
    """As SQLite's integers are."""
    return checksum - 2**64 if checksum >= 2**63 else checksum


META = Table("meta", ("key", "value"))
