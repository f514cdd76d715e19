"""Names, classes and summaries of the policies. Built-in ones are read without an import of torch."""

import ast
import pkgutil
from dataclasses import dataclass
from typing import Any

from unstale import plugins

GROUP = plugins.GROUPS["policy"]

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
"""Entry point of the class of each built-in policy, in a module of this package."""


@dataclass(frozen=True, slots=True)
class PolicySummary:
    """A line of `unstale policies`. Defaults are those of `Policy`."""

    summary: str
    loops: tuple[str, ...] = ("sync", "k-async", "availability")  # kinds of rounds that its paper defines it for
    memory: str = "none"  # state between rounds


def summaries() -> dict[str, PolicySummary]:
    """Return the summary of each policy by name, sorted. Imports plug-ins, and torch with them. Raises UserError."""
    return {name: _parsed(name) or _imported(name) for name in plugins.names(GROUP, CLASSES, kind="policy")}


def _parsed(name: str) -> PolicySummary | None:
    """Parse a class: the first line of its docstring, and its own `loops` and `memory`. Inherited ones are missed.

    None for a plug-in, and for a package that was installed without its source. The package may be in a zip file.
    """
    module, _, class_name = CLASSES.get(name, "").partition(":")
    try:
        source = pkgutil.get_data(__package__, module.rpartition(".")[2] + ".py") if module else None
    except OSError:
        source = None
    if source is None:
        return None
    statements = ast.parse(source).body
    (policy,) = [node for node in statements if isinstance(node, ast.ClassDef) and node.name == class_name]
    assigned: dict[str, Any] = {}
    for statement in policy.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) in ("loops", "memory"):
            assigned[ast.unparse(statement.targets[0])] = ast.literal_eval(statement.value)
    return PolicySummary((ast.get_docstring(policy) or "").partition("\n")[0], **assigned)


def _imported(name: str) -> PolicySummary:
    from unstale.policies.registry import describe

    described = describe(name)
    return PolicySummary(described.summary, described.loops, described.memory)
