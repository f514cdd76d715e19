"""Standard output that cannot be written to, or has no sign for a character."""

import codecs
import errno
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
"""What stands for a character where the encoding of the output has none."""

_HANDLER = "unstale.lookalike"


def _looking_alike(error: UnicodeError) -> tuple[str, int]:
    """The lookalikes of what cannot be encoded; an escape such as \\xe9 for a character without one."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    escaped = (LOOKALIKES.get(sign) or sign.encode("ascii", "backslashreplace").decode() for sign in text)
    return "".join(escaped), error.end


codecs.register_error(_HANDLER, _looking_alike)


def write_lookalikes() -> None:
    """Have characters that standard output cannot encode replaced, where they would raise an error."""
    stream = sys.stdout
    if isinstance(stream, TextIOWrapper) and stream.errors == "strict":
        stream.reconfigure(errors=_HANDLER)


def can_show(text: str) -> bool:
    """Whether standard output can encode every character of a text."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def flush() -> None:
    """Write what standard output still holds. Raises OSError."""
    if sys.stdout is not None:
        sys.stdout.flush()


def failure() -> OSError | None:
    """What keeps standard output from being written to; None where nothing does, after an empty line. Ends writing."""
    if sys.stdout is None:
        return None
    try:
        flush()  # what could not be written may still be held, or may be lost
        os.write(sys.stdout.fileno(), b"\n")
    except OSError as error:
        # At its end the interpreter flushes once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return error
    return None


def is_closed_pipe(error: OSError) -> bool:
    """Whether nobody reads the output any more, as after `| head -1`."""
    return error.errno in (errno.EPIPE, errno.ESHUTDOWN)
