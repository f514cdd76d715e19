"""`RESULTS.jsonl`: results of a store as text, one per line, to publish or move them to another machine."""

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
    """Write every result of the store, or those first computed for these presets, in the order of their names; return
    their number. The write is atomic. Raises UserError.
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
    """Import results of files into a store; return the numbers of new and of present results, which stay unchanged.
    Imports none if a line is invalid or conflicts with the stored result of the same configuration. Raises
    UserError.
    """
    found = {one.digest: one for one in results(paths)}
    had = {one.digest: one for one in store.everything() if one.digest in found}
    for digest, one in had.items():
        _check_same(one, found[digest], "the store has")
    new = [one for digest, one in found.items() if digest not in had]
    store.take(new)
    return len(new), len(had)


def results(paths: Iterable[Path]) -> list[StoredResult]:
    """Results of files, each configuration once. Raises UserError for an invalid line, and for two results of one
    configuration.
    """
    found: dict[str, StoredResult] = {}
    for path in paths:
        for one in _kept(path):
            _check_same(found.setdefault(one.digest, one), one, "a file before has")
    return list(found.values())


def _check_same(had: StoredResult, new: StoredResult, who: str) -> None:
    """Raise UserError for two results of one configuration. who: owner of the first, and the verb."""
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
    fields = {
        "name": stored.name,
        "digest": stored.digest,
        "finished": stored.finished,
        "seconds": round(result.seconds, 1),
        "machine": result.machine,
        "versions": result.versions,
        "configuration": json.loads(stored.configuration),
        "record": json.loads(result.record),
    }
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False) + "\n"


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
    fields = json.loads(line)
    configuration = canonical(fields["configuration"])
    record = Record.from_json(json.dumps(fields["record"])).to_json()
    if sha256(configuration.encode()).hexdigest() != fields["digest"]:
        raise ValueError("its digest is of another configuration")
    words = {key: fields[key] for key in ("machine", "versions")}
    if not all(isinstance(word, str) for word in (*words.values(), fields["name"], fields["finished"])):
        raise TypeError("words are expected")
    return StoredResult(
        digest=fields["digest"],
        configuration=configuration,
        name=fields["name"],
        finished=fields["finished"],
        result=Result(record=record, seconds=float(fields["seconds"]), **words),
    )
