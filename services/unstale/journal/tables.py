"""Tables of `run.db`: columns, SQL, and checksums of rows, which SQLite does not have. Pure."""

from collections.abc import Callable, Sequence
from functools import cache
from operator import itemgetter
from typing import Any

import msgpack
from xxhash import xxh3_64_intdigest

Values = tuple[Any, ...]

_PACK = msgpack.Packer().pack  # reuses its memory: `packb` maps and frees 256 KB each time


class ChangedRowError(Exception):
    """A row does not match its checksum."""


class Table:
    """A table and its columns, in the order of values in memory."""

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
        """Describe a table. checksum, state_checksum: names of columns; None where the table has none.

        facts: columns that never change, under `checksum`; the first is the key. state: columns that change, under
        `state_checksum` together with the columns `keys` of the facts.
        """
        self.name, self._facts, self._state = name, facts, state
        self._end = len(facts)
        self._keys: Callable[[Values], Values] = itemgetter(*map(facts.index, keys)) if keys else lambda _: ()
        checksums = [checksum] if checksum else []
        state_checksums = [state_checksum] if state_checksum and state else []
        self._has_checksum, self._has_state_checksum = bool(checksums), bool(state_checksums)
        columns = [*facts, *checksums, *state, *state_checksums]
        names, placeholders = ", ".join(columns), ", ".join("?" * len(columns))
        # SQL for whole rows, and for the number of rows and the sum of the lower 32 bits of their checksums
        self.select = " ".join(("SELECT", names, "FROM", name))
        sums = [f"ifnull(sum({column} & 4294967295), 0)" for column in (*checksums, *state_checksums)]
        self.total = " ".join(("SELECT", ", ".join(["count(*)", " + ".join(sums) or "0"]), "FROM", name))
        self._into, self._row = " ".join(("INTO", name, f"({names}) VALUES")), f"({placeholders})"
        self._numbers = {column: number for number, column in enumerate(columns)}

    def insert(self, rows: int, *, replace: bool = False) -> str:
        """SQL that inserts so many rows in one statement: each statement releases the GIL and waits for it."""
        return f"INSERT {'OR REPLACE ' if replace else ''}{self._into} {', '.join([self._row] * rows)}"

    @cache  # noqa: B019  (tables live as long as the process)
    def update(self, columns: tuple[str, ...], rows: int) -> str:
        """SQL that updates these columns, and the last one, of so many rows. Its values come from `changed`."""
        names = [self._facts[0], *columns, list(self._numbers)[-1]]
        sets = ", ".join(f"{name} = new.column{number}" for number, name in enumerate(names[1:], start=2))
        row = f"({', '.join('?' * len(names))})"
        of_which = f"FROM (VALUES {', '.join([row] * rows)}) AS new WHERE {names[0]} = new.column1"
        return " ".join(("UPDATE", self.name, "SET", sets, of_which))

    @cache  # noqa: B019
    def changed(self, columns: tuple[str, ...]) -> Callable[[Values], Values]:
        """Selects the values for `update` from a `sealed` row."""
        return itemgetter(0, *(self._numbers[name] for name in columns), len(self._numbers) - 1)

    def sealed(self, values: Values) -> Values:
        """Values with checksums, for an insert."""
        if not self._state:
            return (*values, _checksum(values))
        facts, state = values[: self._end], values[self._end :]
        return (*facts, _checksum(facts), *state, _checksum((*self._keys(facts), *state)))

    def opened(self, values: Values) -> Values:
        """Selected values without checksums. Raises ChangedRowError."""
        end = self._end
        facts = values[:end]
        is_right = True
        if self._has_checksum:
            is_right = _checksum(facts) == values[end]
            end += 1
        state = values[end : end + len(self._state)]
        if self._has_state_checksum:
            is_right &= _checksum((*self._keys(facts), *state)) == values[-1]
        if not is_right:
            raise ChangedRowError(f"{self.row(facts)} does not match its checksum")
        return (*facts, *state)

    def row(self, values: Values) -> str:
        """Name of a row: the table, the key column and its value."""
        return f"{self.name} {self._facts[0]} {values[0]}"


def _checksum(facts: Sequence[Any]) -> int:
    return signed(xxh3_64_intdigest(_PACK(facts)))


def signed(checksum: int) -> int:
    """An unsigned 64-bit number as a signed one, as in SQLite."""
    return checksum - 2**64 if checksum >= 2**63 else checksum


META = Table("meta", ("key", "value"))
TOTALS = "totals"  # key of the other tables' totals, as the last server left them, after its marks
