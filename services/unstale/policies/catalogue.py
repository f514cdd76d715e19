"""The policies as `unstale policies` lists them, without the import of torch that a policy needs."""

import ast
import pkgutil
from dataclasses import dataclass
from typing import Any

from unstale import plugins

ENTRY_POINT_GROUP = "unstale.policies"

CLASSES = {
    "coordinate-median": "unstale.policies.medians:CoordinateMedian",
    "direct": "unstale.policies.client_models:Direct",
    "dynsgd": "unstale.policies.staleness_weights:DynSgd",
    "fedar": "unstale.policies.fedar:FedAr",
    "fedasync": "unstale.policies.client_models:FedAsync",
    "fedavg": "unstale.policies.fedavg:FedAvg",
    "fedavg-is": "unstale.policies.fedavg_sampling:FedAvgIs",
    "fedavg-s": "unstale.policies.fedavg_sampling:FedAvgS",
    "fedbuff": "unstale.policies.staleness_weights:FedBuff",
    "fedhist": "unstale.policies.fedhist:FedHist",
    "fedprox": "unstale.policies.fedavg:FedProx",
    "fedvarp": "unstale.policies.mifa:FedVarp",
    "geometric-median": "unstale.policies.medians:GeometricMedian",
    "gsgm": "unstale.policies.gsgm:Gsgm",
    "krum": "unstale.policies.krum:Krum",
    "mifa": "unstale.policies.mifa:Mifa",
    "moon": "unstale.policies.fedavg:Moon",
    "multi-krum": "unstale.policies.krum:MultiKrum",
    "refl": "unstale.policies.refl:Refl",
    "sasgd": "unstale.policies.staleness_weights:Sasgd",
    "scaffold": "unstale.policies.scaffold:Scaffold",
    "trimmed-mean": "unstale.policies.medians:TrimmedMean",
    "twafl": "unstale.policies.staleness_weights:Twafl",
    "weighted": "unstale.policies.staleness_weights:Weighted",
    "wkafl": "unstale.policies.wkafl:Wkafl",
}
"""The class of each built-in policy, as an entry point names it."""


@dataclass(frozen=True, slots=True)
class PolicySummary:
    """A policy in a list. loops: those that its source defines it for. memory: what it keeps between rounds."""

    summary: str
    loops: tuple[str, ...] = ("sync", "k-async", "availability")
    memory: str = "none"


def summaries() -> dict[str, PolicySummary]:
    """Every policy by its name, sorted. A plug-in is imported for it, and torch with it. Raises UserError."""
    return {name: _of_source(name) or _of_class(name) for name in plugins.names(ENTRY_POINT_GROUP, CLASSES)}


def _of_source(name: str) -> PolicySummary | None:
    """Read the text of a class: the first line of its docstring, and what it assigns to `loops` and `memory`.

    None for a plug-in, and for a package that was installed without its source. It may lie in a zip file.
    """
    module, _, class_name = CLASSES.get(name, "").partition(":")
    try:
        source = pkgutil.get_data(__package__, module.rpartition(".")[2] + ".py") if module else None
    except OSError:
        source = None
    if source is None:
        return None
    statements = ast.parse(source).body
    (policy,) = [each for each in statements if isinstance(each, ast.ClassDef) and each.name == class_name]
    assigned: dict[str, Any] = {}
    for statement in policy.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) in ("loops", "memory"):
            assigned[ast.unparse(statement.targets[0])] = ast.literal_eval(statement.value)
    return PolicySummary((ast.get_docstring(policy) or "").partition("\n")[0], **assigned)


def _of_class(name: str) -> PolicySummary:
    from unstale.policies.registry import describe

    described = describe(name)
    return PolicySummary(described.summary, described.loops, described.memory)
