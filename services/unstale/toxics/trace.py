"""Recorded delays and availability of clients from CSV files."""

import csv
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

CHARACTERS_MAX = 64 * 1024 * 1024  # some three million rows, such as thirty intervals for each of 100,000 clients
DELAYS = ("time_s", "delay_s")
AVAILABILITY = ("client", "start_s", "end_s")

Step = tuple[float, float]
Interval = tuple[float, float]


def read_delays(path: Path) -> tuple[Step, ...]:
    """Read rows of `DELAYS`. Raises ValueError for an invalid file."""
    steps = [(time_s, delay_s) for time_s, delay_s in _rows(path, DELAYS)]
    check_delays(steps, f"trace {path}, line", first=2)
    return tuple(steps)


def read_availability(path: Path) -> list[dict[str, Any]]:
    """Read `AVAILABILITY`: for each client, sorted, its intervals [start_s, end_s). Raises ValueError."""
    by_client: dict[int, list[Interval]] = {}
    for line, (client, start_s, end_s) in enumerate(_rows(path, AVAILABILITY), start=2):
        if client != int(client):
            raise ValueError(f"trace {path}, line {line}: client is {client:g}, expected a whole number")
        by_client.setdefault(int(client), []).append((start_s, end_s))
    for client_id, intervals in by_client.items():
        check_availability(client_id, intervals, f"trace {path}")
    return [{"client": client_id, "intervals_s": by_client[client_id]} for client_id in sorted(by_client)]


def with_content(data: Any, file: str, content: str, read: Callable[[Path], Any]) -> Any:
    """Settings with the content of the file that they name. file, content: names of settings. Raises ValueError."""
    if not isinstance(data, Mapping) or data.get(file) is None:
        return data
    if data.get(content) is not None:
        raise ValueError(f"{file} and {content} are both given, expected one of them")
    return {**data, file: None, content: read(Path(str(data[file])))}


def check_delays(steps: Sequence[Step], where: str, first: int) -> None:
    """Raise ValueError unless times begin at 0 and increase, and delays are >= 0."""
    if len(steps) < 2:
        raise ValueError(f"{where} {first}: {len(steps)} rows, expected at least 2")
    if steps[0][0] != 0:
        raise ValueError(f"{where} {first}: the first time is {steps[0][0]:g} s, expected 0")
    previous_s = -1.0
    for number, (time_s, delay_s) in enumerate(steps, start=first):
        if time_s <= previous_s:
            raise ValueError(
                f"{where} {number}: time {time_s:g} s comes after {previous_s:g} s, expected increasing times"
            )
        if delay_s < 0:
            raise ValueError(f"{where} {number}: the delay is {delay_s:g} s, expected at least 0")
        previous_s = time_s


def check_availability(client_id: int, intervals: Sequence[Interval], where: str) -> None:
    """Raise ValueError unless intervals are sorted, not empty, and do not overlap."""
    if client_id < 0:
        raise ValueError(f"{where}: client is {client_id}, expected at least 0")
    subject = f"{where}: client {client_id} is available from"
    previous_end_s = 0.0
    for start_s, end_s in intervals:
        if end_s <= start_s:
            raise ValueError(f"{subject} {start_s:g} s to {end_s:g} s, expected an end after the start")
        if start_s < previous_end_s:
            raise ValueError(
                f"{subject} {start_s:g} s, expected at least {previous_end_s:g} s, sorted and without overlap"
            )
        previous_end_s = end_s


def _rows(path: Path, head: tuple[str, ...]) -> list[list[float]]:
    """The numbers below the head."""
    if not str(path).isprintable():
        raise ValueError(f"trace is {str(path)!r}, expected a path of printable characters")
    try:
        with path.open(encoding="utf-8", newline="") as file:
            text = file.read(CHARACTERS_MAX + 1)
        lines = list(csv.reader(text.splitlines()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"trace {path} cannot be read: {reason}") from error
    if not lines or [cell.strip() for cell in lines[0]] != list(head):
        # The content is not shown: the file may be no trace.
        raise ValueError(f"trace {path} does not begin with the line {','.join(head)}")
    if len(text) > CHARACTERS_MAX:
        raise ValueError(f"trace {path} is too long, expected at most {CHARACTERS_MAX} characters")
    if len(lines) < 2:
        raise ValueError(f"trace {path} has no rows below its head, expected at least one")
    return [_numbers(cells, head, f"trace {path}, line {line}") for line, cells in enumerate(lines[1:], 2)]


def _numbers(cells: Sequence[str], head: tuple[str, ...], where: str) -> list[float]:
    if len(cells) != len(head):
        raise ValueError(f"{where} has {len(cells)} cells, expected {','.join(head)}")
    numbers = []
    for name, cell in zip(head, cells, strict=True):
        try:
            number = float(cell)
        except ValueError:
            raise ValueError(f"{where}: {name} is {cell[:80]!r}, expected a number") from None
        if not isfinite(number):
            raise ValueError(f"{where}: {name} is {cell.strip()}, expected a finite number")
        numbers.append(number)
    return numbers
