"""Selection of inputs: a few that together reach every fact that any input reaches."""

import hashlib
from collections.abc import Callable, Hashable, Iterable
from importlib import import_module
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
FOUND = Path(".fuzz")  # below the working directory: inputs found by the fuzzer
TARGETS = tuple(sorted(path.stem for path in (Path(__file__).parent / "targets").glob("[a-z]*.py")))
FILES_MAX = 100  # of a target
BYTES_MAX = 1024  # of a file

Target = Callable[[bytes, Callable[[Hashable], None]], None]


def target_named(name: str) -> Target:
    """The function that runs its inputs."""
    run: Target = import_module(f"fuzz.targets.{name}").run
    return run


def files(name: str, *, found: bool = False) -> list[Path]:
    """A target's inputs in the repository, and those found since."""
    folders = [CORPUS / name, FOUND / name] if found else [CORPUS / name]
    return sorted(path for folder in folders if folder.is_dir() for path in folder.iterdir())


def facts_of(run: Target, data: bytes) -> frozenset[Hashable]:
    """The facts of an input."""
    facts: set[Hashable] = set()
    run(data, facts.add)
    return frozenset(facts)


def choose(facts: dict[bytes, frozenset[Hashable]], most: int) -> list[bytes]:
    """At most so many inputs, each adding the most facts to those before; of equals the shortest."""
    left = sorted(facts, key=lambda data: (len(data), data))
    chosen: list[bytes] = []
    reached: frozenset[Hashable] = frozenset()
    while left and len(chosen) < most:
        best = max(left, key=lambda data: len(facts[data] - reached))
        if facts[best] <= reached:
            break
        chosen.append(best)
        reached |= facts[best]
        left = [data for data in left if not facts[data] <= reached]
    return chosen


def keep(name: str) -> int:
    """Replace the inputs of the repository by the selected ones. Returns their number."""
    run = target_named(name)
    inputs = {path.read_bytes() for path in files(name, found=True)}
    chosen = choose({data: facts_of(run, data) for data in inputs if len(data) <= BYTES_MAX}, FILES_MAX)
    replace(CORPUS / name, chosen)
    return len(chosen)


def replace(folder: Path, contents: Iterable[bytes]) -> None:
    """Replace the files of a folder by these contents, each named by its digest."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    for content in contents:
        (folder / hashlib.sha256(content).hexdigest()[:16]).write_bytes(content)
