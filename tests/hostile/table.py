"""The figures of attacks as a table for a terminal or a document."""

from collections.abc import Iterator, Sequence

from hostile.play import Played

HEADINGS = ("attack", "scene", "honest/s", "ratio", "memory", "descriptors", "log", "/healthz", "")
_WIDTHS = (34, 15, 20, 6, 15, 12, 10, 9, 0)


def heading() -> str:
    return _line(HEADINGS)


def lines(played: Played) -> Iterator[str]:
    """A row, the attack's own figures, and the violations."""
    if played.before_per_s or played.facts:
        rates = f"{played.before_per_s:.0f}, {played.during_per_s:.0f}, {played.after_per_s:.0f}"
        yield _line(
            (
                played.name,
                played.scene,
                rates,
                f"{played.ratio:.2f}",
                f"{played.memory_bytes / 1e6:.0f} ({played.taken_bytes / 1e6:+.0f}) MB",
                str(played.descriptors),
                f"{played.log_bytes_per_s / 1e3:.1f} KB/s",
                f"{played.health_s:.2f} s",
                ", ".join(f"{name} {value:,.0f}" for name, value in played.facts.items()),
            )
        )
    yield from (f"    FAILED {played.name}, {played.scene}: {sentence}" for sentence in played.wrong)


def _line(cells: Sequence[str]) -> str:
    return " ".join(cell.ljust(width) for cell, width in zip(cells, _WIDTHS, strict=True)).rstrip()
