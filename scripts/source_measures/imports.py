"""Import cycles: modules that reach each other by imports.

`from package import module` imports the module only: the package's `__init__`, which Python executes first, counts only
where a name is taken from it. Imports in functions and under `TYPE_CHECKING` are deferred.
"""

import ast
from collections.abc import Sequence

from source_measures.source import FUNCTION, Source


def imported(source: Source, modules: set[str], *, deferred: bool) -> set[str]:
    """The modules that a module imports.

    Args:
        source: the module.
        modules: those that count.
        deferred: whether deferred imports count.

    Returns:
        Names of modules, the module itself left out.
    """
    names: set[str] = set()
    stack: list[ast.AST] = [source.tree]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = source.origin(node)
            full = (f"{origin}.{alias.name}" for alias in node.names)
            names.update(name if name in modules else origin for name in full)
        elif isinstance(node, ast.If) and _is_for_types(node.test) and not deferred:
            stack += node.orelse
        elif deferred or not isinstance(node, (*FUNCTION, ast.Lambda)):
            stack += ast.iter_child_nodes(node)
    return names & modules - {source.module}


def circles(sources: Sequence[Source], *, deferred: bool) -> list[tuple[str, ...]]:
    """The import circles, which are strongly connected components of the graph of imports.

    Args:
        sources: the modules.
        deferred: whether deferred imports count.

    Returns:
        The names of the modules of each circle, sorted.
    """
    modules = {source.module for source in sources}
    edges = {source.module: imported(source, modules, deferred=deferred) for source in sources}
    reached: dict[str, set[str]] = {}
    for module in modules:
        reached[module], stack = set(), [module]
        while stack:
            new = edges[stack.pop()] - reached[module]
            reached[module] |= new
            stack += new
    return sorted({tuple(sorted(n for n in reached[m] if m in reached[n])) for m in modules if m in reached[m]})


def _is_for_types(test: ast.expr) -> bool:
    return ast.unparse(test).rpartition(".")[2] == "TYPE_CHECKING"
