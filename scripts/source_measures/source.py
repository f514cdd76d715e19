"""Files of source, parsed."""

import ast
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Source:
    """A file of source.

    Attributes:
        path: as it is shown.
        module: its dotted name.
        text: its content.
        is_package: whether it is an `__init__.py`.
    """

    path: str
    module: str
    text: str
    is_package: bool

    @cached_property
    def tree(self) -> ast.Module:
        """The parsed text."""
        return ast.parse(self.text, self.path)

    @cached_property
    def functions(self) -> list[tuple[Function, bool]]:
        """Every function, and whether it is defined in the body of a class."""
        parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}
        return [(n, isinstance(parents[n], ast.ClassDef)) for n in parents if isinstance(n, FUNCTION)]

    @cached_property
    def classes(self) -> list[ast.ClassDef]:
        """Every class."""
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef)]

    @cached_property
    def imports(self) -> dict[str, str]:
        """The dotted name behind each local name that an import binds."""
        bound: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                bound |= {a.asname: a.name for a in node.names if a.asname}
                bound |= {first: first for a in node.names if not a.asname for first in [a.name.split(".")[0]]}
            elif isinstance(node, ast.ImportFrom):
                bound |= {a.asname or a.name: f"{self.origin(node)}.{a.name}" for a in node.names}
        return bound

    def origin(self, node: ast.ImportFrom) -> str:
        """The module that a `from` import takes names from."""
        parts = self.module.split(".")
        above = parts[: len(parts) - node.level + self.is_package] if node.level else []
        return ".".join([*above, *([node.module] if node.module else [])])


def read(root: Path, base: Path) -> list[Source]:
    """The source files below a root.

    Args:
        root: folder that holds packages. A folder `tests` directly below it is left out.
        base: folder that paths are shown relative to; `root` is below it.

    Returns:
        The files by path.
    """
    sources = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if parts[0] == "tests":
            continue
        is_package = parts[-1] == "__init__"
        module = ".".join(parts[:-1] if is_package else parts)
        sources.append(Source(str(path.relative_to(base)), module, path.read_text(encoding="utf-8"), is_package))
    return sources
