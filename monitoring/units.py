"""Numbers with their units, similar to Grafana's format."""

from math import floor, isfinite, log10

_SECONDS = (
    (365 * 86400.0, "years"),
    (7 * 86400.0, "weeks"),
    (86400.0, "days"),
    (3600.0, "hours"),
    (60.0, "mins"),
    (1.0, "s"),
    (1e-3, "ms"),
    (1e-6, "µs"),
)
_BYTES = ((1024.0**4, "TiB"), (1024.0**3, "GiB"), (1024.0**2, "MiB"), (1024.0, "KiB"), (1.0, "B"))
_COUNT = ((1e9, "B"), (1e6, "M"), (1e3, "K"), (1.0, ""))


def shown(value: float, unit: str, decimals: int | None = None) -> str:
    """Format a value. unit: Grafana's id. decimals: None for about three digits. `–` for nan."""
    if not isfinite(value):
        return "–"
    if unit == "percentunit":
        return f"{_plain(100 * value, decimals)}%"
    if unit == "s":
        return _scaled(value, _SECONDS, decimals)
    if unit == "bytes":
        return _scaled(value, _BYTES, decimals)
    if unit == "binBps":
        return f"{_scaled(value, _BYTES, decimals)}/s"
    if unit.startswith("count:"):
        return f"{_scaled(value, _COUNT, decimals).rstrip()} {unit.removeprefix('count:')}"
    if unit == "none":
        return _plain(value, decimals)
    return _scaled(value, _COUNT, decimals).rstrip()


def _scaled(value: float, scale: tuple[tuple[float, str], ...], decimals: int | None) -> str:
    """The value in the largest unit of the scale of which it has at least one, or the smallest."""
    size, name = next((step for step in scale if abs(value) >= step[0]), scale[-1])
    if value == 0:
        size, name = next(step for step in scale if step[0] == 1.0)
    return f"{_plain(value / size, decimals)} {name}"


def _plain(value: float, decimals: int | None) -> str:
    if decimals is None:
        digits = floor(log10(abs(value))) if value else 0
        decimals = max(0, 2 - max(digits, 0)) if digits >= 0 else min(2 - digits, 4)
        text = f"{value:.{decimals}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return f"{value:.{decimals}f}"
