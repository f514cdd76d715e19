"""Recorded times: CSV files with a head, numbers in every cell, times that rise. A mistake is told with its line."""

import csv
from collections.abc import Sequence
from math import isfinite
from pathlib import Path

from pydantic_core import PydanticCustomError

CHARACTERS_MAX = 64 * 1024 * 1024
"""Of one file: some three million rows, such as thirty intervals for each of 100,000 clients."""

DELAYS = ("time_s", "delay_s")
PRESENCE = ("client", "start_s", "end_s")

Step = tuple[float, float]
Interval = tuple[float, float]


def mistake(sentence: str) -> PydanticCustomError:
    """What a validator raises, and `mistakes.user_error` tells as it is."""
    return PydanticCustomError("sentence", "{sentence}", {"sentence": sentence})


def expected(what: str) -> PydanticCustomError:
    """What a validator raises, and `mistakes.user_error` tells with the value that was given."""
    return PydanticCustomError("expected", "{what}", {"what": what})


def read_delays(path: Path) -> tuple[Step, ...]:
    """(time_s, delay_s) of a file with this head; raises a `mistake` for what `check_delays` refuses."""
    steps = [(time_s, delay_s) for time_s, delay_s in _rows(path, DELAYS)]
    check_delays(steps, f"trace {path}, line", first=2)
    return tuple(steps)


def read_presence(path: Path) -> dict[int, tuple[Interval, ...]]:
    """By client, when it is there: [start_s, end_s). Raises a `mistake` for what `check_presence` refuses."""
    by_client: dict[int, list[Interval]] = {}
    for line, (client, start_s, end_s) in enumerate(_rows(path, PRESENCE), start=2):
        if client != int(client):
            raise mistake(f"trace {path}, line {line}: client is {client:g}, expected a whole number")
        by_client.setdefault(int(client), []).append((start_s, end_s))
    for client_id, intervals in by_client.items():
        check_presence(client_id, intervals, f"trace {path}")
    return {client_id: tuple(intervals) for client_id, intervals in by_client.items()}


def check_delays(steps: Sequence[Step], place: str, first: int) -> None:
    """Times begin at 0 and rise, delays are >= 0. place: of the steps, whose numbers begin at first."""
    if len(steps) < 2:
        raise mistake(f"{place} {first}: {len(steps)} rows, expected at least 2")
    if steps[0][0] != 0:
        raise mistake(f"{place} {first}: the first time is {steps[0][0]:g} s, expected 0")
    before_s = -1.0
    for number, (time_s, delay_s) in enumerate(steps, start=first):
        if time_s <= before_s:
            raise mistake(
                f"{place} {number}: time {time_s:g} s comes after {before_s:g} s, expected rising times"
            )
        if delay_s < 0:
            raise mistake(f"{place} {number}: the delay is {delay_s:g} s, expected at least 0")
        before_s = time_s


def check_presence(client_id: int, intervals: Sequence[Interval], place: str) -> None:
    """The intervals of a client have a length, do not overlap, and are in order."""
    if client_id < 0:
        raise mistake(f"{place}: client is {client_id}, expected at least 0")
    free_s = 0.0
    for start_s, end_s in intervals:
        if end_s <= start_s:
            raise mistake(
                f"{place}: client {client_id} is there from {start_s:g} s to {end_s:g} s, "
                "expected an end after the start"
            )
        if start_s < free_s:
            raise mistake(
                f"{place}: client {client_id} is there from {start_s:g} s, expected at least {free_s:g} s, "
                "sorted and without overlap"
            )
        free_s = end_s


def _rows(path: Path, head: tuple[str, ...]) -> list[list[float]]:
    """The cells below the head, all of them finite numbers."""
    if not str(path).isprintable():
        raise mistake(f"trace is {str(path)!r}, expected a path that can be printed on a line")
    try:
        with path.open(encoding="utf-8", newline="") as file:
            text = file.read(CHARACTERS_MAX + 1)
        lines = list(csv.reader(text.splitlines()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise mistake(f"trace {path} cannot be read: {reason}") from error
    if not lines or [cell.strip() for cell in lines[0]] != list(head):
        raise mistake(
            f"trace {path} does not begin with the line {','.join(head)}"
        )  # and may be no trace: none of it is shown
    if len(text) > CHARACTERS_MAX:
        raise mistake(f"trace {path} is too long, expected at most {CHARACTERS_MAX} characters")
    if len(lines) < 2:
        raise mistake(f"trace {path} has no rows below its head, expected at least one")
    return [
        _numbers(cells, head, f"trace {path}, line {line}") for line, cells in enumerate(lines[1:], start=2)
    ]


def _numbers(cells: Sequence[str], head: tuple[str, ...], place: str) -> list[float]:
    if len(cells) != len(head):
        raise mistake(f"{place} has {len(cells)} cells, expected {','.join(head)}")
    numbers = []
    for name, cell in zip(head, cells, strict=True):
        try:
            number = float(cell)
        except ValueError:
            raise mistake(f"{place}: {name} is {cell[:80]!r}, expected a number") from None
        if not isfinite(number):
            raise mistake(f"{place}: {name} is {cell.strip()}, expected a finite number")
        numbers.append(number)
    return numbers
