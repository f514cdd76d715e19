"""Failures of standard output: closed pipes, full disks, encodings without some characters."""

import codecs
import os
import sys
from io import TextIOWrapper

LOOKALIKES = {
    **dict(zip("▁▂▃▄▅▆▇█", "_.-:=+*#", strict=True)),
    **dict(zip("░▒▓", ".:+", strict=True)),
    "±": "+-",
    "²": "^2",
    "–": "-",
    "—": "-",
    "…": "...",
    "·": ".",
    "×": "x",
    "≤": "<=",
    "≥": ">=",
}
"""Replacements of characters that the encoding of the output lacks."""

_HANDLER = "unstale.lookalike"


def _looking_alike(error: UnicodeError) -> tuple[str, int]:
    r"""Return the lookalikes of a text, and an escape such as \xe9 for a character without one."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    escaped = (LOOKALIKES.get(sign) or sign.encode("ascii", "backslashreplace").decode() for sign in text)
    return "".join(escaped), error.end


codecs.register_error(_HANDLER, _looking_alike)


def write_lookalikes() -> None:
    """Replace characters that standard output cannot encode."""
    stream = sys.stdout
    if isinstance(stream, TextIOWrapper) and stream.errors == "strict":
        stream.reconfigure(errors=_HANDLER)


def can_show(text: str) -> bool:
    """Return whether standard output can encode a text."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def flush() -> None:
    """Flush standard output. Raises OSError."""
    if sys.stdout is not None:
        sys.stdout.flush()


def failure() -> OSError | None:
    """Return the error of standard output, and discard further output. Without an error, print an empty line."""
    if sys.stdout is None:
        return None
    try:
        flush()
        os.write(sys.stdout.fileno(), b"\n")
    except OSError as error:
        # At its end the interpreter flushes once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return error
    return None
