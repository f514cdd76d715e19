"""The built-in policies as `unstale policies` lists them. Nothing here imports torch, as the policies themselves do.

What stands here is what the classes say; a test compares them.
"""

from dataclasses import dataclass

from unstale import plugins

ENTRY_POINT_GROUP = "unstale.policies"


@dataclass(frozen=True, slots=True)
class PolicySummary:
    """A policy in a list. loops: those that its source defines it for. memory: what it keeps between rounds."""

    summary: str
    loops: tuple[str, ...]
    memory: str


BUILT_IN = {
    "coordinate-median": PolicySummary(
        "The median of the updates, each coordinate for itself; fewer than half of them cannot drag it away.",
        ("sync", "k-async", "availability"),
        "none",
    ),
    "direct": PolicySummary(
        "The average of the updates, stale ones unchanged.",
        ("sync", "k-async"),
        "none; live versions for stale_form=model",
    ),
    "dynsgd": PolicySummary("An update s rounds late weighs 1 / (s + 1).", ("k-async",), "none"),
    "fedar": PolicySummary(
        "The average over all clients that still count of the last update that each of them sent, the older the "
        "heavier.",
        ("availability",),
        "N x d + N + 2 d for each round within the cut-off",
    ),
    "fedasync": PolicySummary(
        "Mixes the model with the clients' models, one after another in order of arrival.",
        ("k-async",),
        "live versions",
    ),
    "fedavg": PolicySummary(
        "The average of the updates, whatever their staleness.", ("sync", "k-async", "availability"), "none"
    ),
    "fedavg-is": PolicySummary(
        "An update weighs as much more as its client is rarer, so that on average every client counts the same.",
        ("availability",),
        "N",
    ),
    "fedavg-s": PolicySummary(
        "The average of at most S updates of the round, chosen by lot.",
        ("availability",),
        "none; d + S ids where it waits",
    ),
    "fedbuff": PolicySummary(
        "The average of the updates, each damped by 1 / sqrt(1 + staleness).", ("k-async",), "none"
    ),
    "fedhist": PolicySummary(
        "Weighs updates by staleness and by what their senders' earlier updates were worth, and mixes in the past.",
        ("k-async",),
        "h d + (h + 1) K d + N",
    ),
    "fedprox": PolicySummary(
        "The average of updates from clients that pay for moving away from the model they were sent.",
        ("sync", "k-async", "availability"),
        "none",
    ),
    "fedvarp": PolicySummary(
        "The average of everybody's remembered updates, and how much the round's updates differ from their senders'.",
        ("availability",),
        "N x d + 2 d",
    ),
    "geometric-median": PolicySummary(
        "The point with the least sum of distances to the updates; fewer than half of them cannot drag it away.",
        ("sync", "k-async", "availability"),
        "none",
    ),
    "gsgm": PolicySummary(
        "The average of the round plus a momentum: the average over the last cycle, in which each client counted once.",
        ("k-async",),
        "2 d + N flags; updates that wait for their cycle, at most N d",
    ),
    "krum": PolicySummary(
        "The one update that lies closest to its neighbours.", ("sync", "k-async", "availability"), "none"
    ),
    "mifa": PolicySummary(
        "The average over all clients of the last update that each of them sent.",
        ("availability",),
        "N x d + 2 d + N flags",
    ),
    "moon": PolicySummary(
        "The average of updates from clients that train with a contrastive loss against their own last model.",
        ("sync", "k-async", "availability"),
        "none",
    ),
    "multi-krum": PolicySummary(
        "The average of the m updates that lie closest to their neighbours.",
        ("sync", "k-async", "availability"),
        "none",
    ),
    "refl": PolicySummary(
        "The freshest updates weigh 1; others by their age and by how much they deviate from the freshest.",
        ("k-async",),
        "none",
    ),
    "sasgd": PolicySummary(
        "Each update moves the model by its own learning rate, divided by its age.", ("k-async",), "none"
    ),
    "scaffold": PolicySummary(
        "The average of updates whose clients corrected every gradient by c - c_i.",
        ("sync", "k-async", "availability"),
        "d",
    ),
    "trimmed-mean": PolicySummary(
        "The mean of the updates, each coordinate without its smallest and its largest values.",
        ("sync", "k-async", "availability"),
        "none",
    ),
    "twafl": PolicySummary(
        "An update s rounds late weighs (e/2)^-s times its share of the examples.", ("k-async",), "none"
    ),
    "weighted": PolicySummary(
        "The average of the updates, each damped by half for every half-life that it is late.",
        ("sync", "k-async"),
        "none",
    ),
    "wkafl": PolicySummary(
        "Estimates the unbiased gradient from the freshest updates, and keeps those that are similar to it.",
        ("k-async",),
        "2 d + the stage",
    ),
}


def summaries() -> dict[str, PolicySummary]:
    """Every policy by its name, sorted. A plug-in is imported for it, and torch with it. Raises UserError."""
    return {name: BUILT_IN.get(name) or _of_a_plugin(name) for name in plugins.names(ENTRY_POINT_GROUP, BUILT_IN)}


def _of_a_plugin(name: str) -> PolicySummary:
    from unstale.policies.registry import describe

    described = describe(name)
    return PolicySummary(described.summary, described.loops, described.memory)
