"""Handles failures of standard output: closed pipes, full disks, characters that its encoding lacks."""

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

_ERROR_HANDLER = "unstale.lookalike"


def _replace_characters(error: UnicodeError) -> tuple[str, int]:
    r"""Codec error handler: a lookalike for each character, or an escape such as \xe9 if it has none."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    replacements = (LOOKALIKES.get(each) or each.encode("ascii", "backslashreplace").decode() for each in text)
    return "".join(replacements), error.end


codecs.register_error(_ERROR_HANDLER, _replace_characters)


def write_lookalikes() -> None:
    """Make standard output write lookalikes of characters that it cannot encode, instead of raising."""
    stream = sys.stdout
    if isinstance(stream, TextIOWrapper) and stream.errors == "strict":
        stream.reconfigure(errors=_ERROR_HANDLER)


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
    """Test standard output by writing an empty line. Returns its error, after which all output is discarded."""
    if sys.stdout is None:
        return None
    try:
        flush()
        os.write(sys.stdout.fileno(), b"\n")
    except OSError as error:
        # The interpreter flushes once more when it exits, which would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return error
    return None
