"""Runs the checks of the asked levels against a client command."""

from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from unstale.client_conformance.check import CHECKS, LEVELS, Check
from unstale.client_conformance.peer import LIMIT_S, PLACEHOLDERS, Peer
from unstale.client_conformance.rules import BrokenRuleError, NotApplicableError
from unstale.errors import UserError, unknown_name
from unstale.net import keygen
from unstale.net.authorized_keys import EVERY_CLIENT, ClientIds
from unstale_client.net.keys import SECRET_SUFFIX, identity

CONCURRENT = 8  # checks; they wait most of the time


@dataclass(frozen=True, slots=True)
class Row:
    """One check in the report."""

    level: str
    check: str
    section: str
    verdict: str  # passed, failed or skipped
    rule: str
    detail: str  # of a failure: what was expected and what came; else the reason to skip


def examine(
    command: str, levels: Collection[str] = (), names: Collection[str] = (), *, limit_s: float = LIMIT_S
) -> Iterator[Row]:
    """Examine the client that a command starts, at some levels, by default all, or with some checks of any level.

    limit_s: longest wait for one message.
    """
    _load()
    for level in levels:
        if level not in LEVELS:
            raise unknown_name("level", level, LEVELS)
    for name in ("address", "client_id"):
        if "{" + name + "}" not in command:
            raise UserError(
                f"--client is {command!r}, expected {{{name}}} in it, one of {', '.join(PLACEHOLDERS)}; add it"
            )
    asked = [
        check for check in CHECKS.values() if check.name in names or (not names and check.level in (levels or LEVELS))
    ]
    with ThreadPoolExecutor(CONCURRENT) as pool:
        yield from pool.map(lambda check: _row(check, command, limit_s), asked)


def _row(check: Check, command: str, limit_s: float) -> Row:
    verdict, detail = "passed", ""
    try:
        with TemporaryDirectory(prefix="unstale-examination-") as folder:
            _run(check, command, Path(folder), limit_s)
    except BrokenRuleError as error:
        verdict, detail = "failed", str(error)
    except NotApplicableError as error:
        verdict, detail = "skipped", str(error)
    return Row(check.level, check.name, check.section, verdict, check.rule, detail)


def _run(check: Check, command: str, folder: Path, limit_s: float) -> None:
    (folder / "client").mkdir()
    of_server, key = None, ""
    if "{key}" in command:
        keygen.create(folder / "keys", "server", None)
        keygen.create(folder / "keys", "client", ClientIds.parse(EVERY_CLIENT, "clients"))
        of_server = identity(folder / "keys" / f"server{SECRET_SUFFIX}", "key")
        key = str(folder / "keys" / f"client{SECRET_SUFFIX}")
    with Peer(command, folder / "client", of_server, key, limit_s=limit_s) as peer:
        check.script(peer)


def _load() -> None:
    """Register the checks."""
    from unstale.client_conformance import minimum, minimum_endings, chunks, encoded, outbox, keyed  # noqa: F401, I001  (the order of the report)
