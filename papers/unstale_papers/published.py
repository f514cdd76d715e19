"""`RESULTS.jsonl`: results of a store as text, a line each, to publish them or to take them to another machine."""

import json
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path

from unstale.errors import UserError
from unstale.journal.disk import PART
from unstale_client.disk import trouble
from unstale_papers.jobs import canonical
from unstale_papers.record import Record
from unstale_papers.store import Result, Store, StoredResult


def write(store: Store, path: Path, presets: Sequence[str] = ()) -> int:
    """Every result of the store, or those that were computed first for these presets, in the order of their names:
    how many. The file is whole or as it was before. Raises UserError.
    """
    kept = [one for one in store.everything() if not presets or one.name.partition(":")[0] in presets]
    part = path.with_name(f".{path.name}{PART}")
    try:
        with part.open("w", encoding="utf-8") as opened:
            opened.writelines(_line(one) for one in kept)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise trouble("write", path, error) from None
    return len(kept)


def read(store: Store, paths: Iterable[Path]) -> tuple[int, int]:
    """Take results of files into a store: how many are new, and how many it had, which stay as they are. All of them,
    or none at all where one is not what `write` wrote, or is another result than the store has of the same
    configuration. Raises UserError.
    """
    found: dict[str, StoredResult] = {}
    for path in paths:
        for one in _kept(path):
            _check_same(found.setdefault(one.digest, one), one, "a file before has")
    had = {one.digest: one for one in store.everything() if one.digest in found}
    for digest, one in had.items():
        _check_same(one, found[digest], "the store has")
    new = [one for digest, one in found.items() if digest not in had]
    store.take(new)
    return len(new), len(had)


def _check_same(had: StoredResult, new: StoredResult, who: str) -> None:
    """Raise UserError for two results of one configuration. who: has the first, and the verb."""
    if had.result.record == new.result.record:
        return
    ours, theirs = (Record.from_json(each.result.record) for each in (had, new))
    if ours.model_digest != theirs.model_digest:
        raise UserError(
            f"the result of '{had.name}' is another one than {who}, of the same configuration: of "
            f"'{new.result.machine}' here, of '{had.result.machine}' there; the bits of a result can "
            "differ between machines: name another folder with --store"
        )


def _line(stored: StoredResult) -> str:
    result = stored.result
    said = {
        "name": stored.name,
        "digest": stored.digest,
        "finished": stored.finished,
        "seconds": round(result.seconds, 1),
        "machine": result.machine,
        "versions": result.versions,
        "configuration": json.loads(stored.configuration),
        "record": json.loads(result.record),
    }
    return json.dumps(said, separators=(",", ":"), ensure_ascii=False) + "\n"


def _kept(path: Path) -> Iterator[StoredResult]:
    try:
        with path.open(encoding="utf-8") as opened:
            for number, line in enumerate(opened, start=1):
                try:
                    yield _of_line(line)
                except (ValueError, TypeError, KeyError, AttributeError):
                    raise UserError(
                        f"line {number} of {path} is not a result as `unstale reproduce export` writes it; nothing was "
                        "taken: write the file again"
                    ) from None
    except OSError as error:
        raise trouble("read", path, error) from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not text, expected what `unstale reproduce export` writes") from None


def _of_line(line: str) -> StoredResult:
    said = json.loads(line)
    configuration = canonical(said["configuration"])
    record = Record.from_json(json.dumps(said["record"])).to_json()
    if sha256(configuration.encode()).hexdigest() != said["digest"]:
        raise ValueError("its digest is of another configuration")
    words = {key: said[key] for key in ("machine", "versions")}
    if not all(isinstance(word, str) for word in (*words.values(), said["name"], said["finished"])):
        raise TypeError("words are expected")
    return StoredResult(
        digest=said["digest"],
        configuration=configuration,
        name=said["name"],
        finished=said["finished"],
        result=Result(record=record, seconds=float(said["seconds"]), **words),
    )
