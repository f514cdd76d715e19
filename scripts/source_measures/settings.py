"""Settings that are declared twice.

A setting is a pair (section, key), such as `training.momentum`. The rules, in order:

1. A settings class is a dataclass or a pydantic model whose name ends in a word of `SECTIONS` with `Settings` or `Plan`
   behind it (`PartitionPlan`), a pydantic model also without (`Partition`), or a class that inherits from one of these
   (`Dirichlet(Partition)`).
2. It declares a key by an annotated field with a default, or with bounds: an argument of `Field` such as `ge`, a
   `Literal`, or an alias that has one of these. A field with a name and a type alone uses the
   setting and does not declare it. A field whose type is a dataclass or a pydantic model is a section, not a setting.
   The wire contract validates what other machines send: its aliases are formats (`Seconds`, `Count`), and a default of
   None says that a field may be left out. There a field declares a setting only by another default or by bounds of its
   own.
3. Classes of a section that inherit from one another are one place of declaration: `alpha` of two partitions is two
   settings of two parts. A setting is declared twice when two or more places declare it.

Bounds that a statement checks (`if k < 1: raise`), and defaults of function parameters, are not seen.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain

from source_measures.functions import is_dataclass, own_fields
from source_measures.source import Source

SECTIONS: Mapping[str, str] = {
    "": "",
    "Server": "",  # keys of the top level and of `server`, none of which is in both
    "Coordinator": "",
    "Welcome": "",
    "Model": "model",
    "Data": "data",
    "Variant": "data.variant",
    "Partition": "partition",
    "Training": "training",
    "Steps": "training",
    "Schedule": "training.schedule",
    "Policy": "policy",
    "Optimiser": "policy.optimiser",
    "Compensator": "compensator",
    "Trigger": "trigger",
    "Selector": "selector",
    "Encoding": "encoding",
    "Run": "run",
    "Client": "client",
    "Injector": "injector",
    "Scenario": "scenario",
    "Attack": "attack",
    "Simulation": "simulation",
}
"""The section of the configuration by the last word of a class name."""

WIRE = "unstale_proto"

BOUNDS = {"gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern"}


class Declarations:
    """The settings that the classes of a source tree declare."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = {source.module: source for source in sources}
        self._classes = {f"{s.module}.{node.name}": node for s in sources for node in s.classes}
        self._module = {f"{s.module}.{node.name}": s.module for s in sources for node in s.classes}
        self._aliases = {
            f"{source.module}.{target.id}": node.value
            for source in sources
            for node in source.tree.body
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        }

    def declared_twice(self) -> dict[str, list[str]]:
        """Each setting that two or more places declare, with `path:line` of every declaration."""
        places: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for name, node in self._classes.items():
            line = [name, *self._ancestors(name)]
            sections = [self._section(one) for one in line]
            section = next((one for one in sections if one is not None), None)
            if section is None or not self._has_declared_fields(name):
                continue
            root = [one for one, its in zip(line, sections, strict=True) if its == section][-1]
            source = self._sources[self._module[name]]
            for key, field in own_fields(node):
                if self._declares(source.module, field):
                    setting = f"{section}.{key}".lstrip(".")
                    places[setting][root].append(f"{source.path}:{field.lineno}")
        several = {setting: by_root for setting, by_root in places.items() if len(by_root) > 1}
        return {key: sorted(chain.from_iterable(several[key].values())) for key in sorted(several)}

    def _ancestors(self, name: str) -> list[str]:
        """Base classes and theirs, nearest first; those outside the tree by the name in the class statement."""
        bases = (base.value if isinstance(base, ast.Subscript) else base for base in self._classes[name].bases)
        full = [self._resolved(self._module[name], ast.unparse(base)) for base in bases]
        return [one for base in full for one in (base, *(self._ancestors(base) if base in self._classes else ()))]

    def _section(self, name: str) -> str | None:
        """The section by the last word of a class name."""
        own = name.rpartition(".")[2]
        stem = re.sub("(Settings|Plan)$", "", own)
        if stem == own and not self._is_model(name):
            return None
        last = re.search("[A-Z][a-z]*$|^$", stem)
        return SECTIONS.get(last[0]) if last else None

    def _is_model(self, name: str) -> bool:
        """Whether a class is a pydantic model."""
        return name in self._classes and bool(
            {base.rpartition(".")[2] for base in self._ancestors(name)} & {"BaseModel", "BaseSettings"}
        )

    def _has_declared_fields(self, name: str) -> bool:
        """Whether a class of the tree is a dataclass or a pydantic model."""
        return self._is_model(name) or is_dataclass(self._classes[name])

    def _resolved(self, module: str, name: str) -> str:
        """The full name of a dotted name in a module, through imports of imports."""
        first, dot, rest = name.partition(".")
        if f"{module}.{name}" in self._classes.keys() | self._aliases.keys() or module not in self._sources:
            return f"{module}.{name}"
        if first not in self._sources[module].imports:
            return name
        full = self._sources[module].imports[first] + dot + rest
        origin, _, last = full.rpartition(".")
        return self._resolved(origin, last) if origin != module else full

    def _declares(self, module: str, field: ast.AnnAssign) -> bool:
        """Whether a field has a default or bounds, and is no section."""
        names = [node.id for node in ast.walk(field.annotation) if isinstance(node, ast.Name)]
        types = [self._resolved(module, name) for name in names]
        if any(one in self._classes and self._has_declared_fields(one) for one in types):
            return False
        value = field.value
        if module.partition(".")[0] == WIRE and (value is None or ast.unparse(value) == "None"):
            return any(_is_bounded(node) for node in ast.walk(field.annotation))
        if isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] in ("Field", "field", "setting"):
            keywords = {keyword.arg for keyword in value.keywords}
            default = bool(value.args) and ast.unparse(value.args[0]) != "..."
            default |= bool(keywords & {"default", "default_factory"})
            return default or self._has_bounds(module, value) or self._has_bounds(module, field.annotation)
        return value is not None or self._has_bounds(module, field.annotation)

    def _has_bounds(self, module: str, expression: ast.expr) -> bool:
        for node in ast.walk(expression):
            if _is_bounded(node):
                return True
            if isinstance(node, ast.Name):
                alias = self._resolved(module, node.id)
                origin = alias.rpartition(".")[0]
                if node.id == "Literal" or (alias in self._aliases and self._has_bounds(origin, self._aliases[alias])):
                    return True
        return False


def _is_bounded(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and bool({keyword.arg for keyword in node.keywords} & BOUNDS)
