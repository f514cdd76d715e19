"""`unstale recommend`: the policy that the guide's evidence supports for a condition, and its settings."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from unstale.cli import printing
from unstale_papers.cli.job_options import AsJson

if TYPE_CHECKING:
    from unstale_papers.guide.advice import Advice
    from unstale_papers.guide.evidence import Standing

Staleness = Annotated[
    str | None,
    typer.Option(
        "--staleness",
        metavar="low|high",
        help="Clients per update of a round, N/K: low is 5, high is 50. Default: the mean of both.",
        show_default=False,
    ),
]
Heterogeneity = Annotated[
    str | None,
    typer.Option(
        "--heterogeneity",
        metavar="iid|non-iid",
        help="Whether clients have data of different distributions. Default: the mean of both.",
        show_default=False,
    ),
]
Absence = Annotated[
    str | None,
    typer.Option(
        "--absence",
        metavar="none|half",
        help="Whether half of the clients are away half of the time. Default: the mean of both.",
        show_default=False,
    ),
]
TaskName = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="NAME",
        help="Only the evidence of this task, the one most like yours: digits, mnist, cifar10, regression or text. "
        "Default: all that have results.",
        show_default=False,
    ),
]


def recommend(
    staleness: Staleness = None,
    heterogeneity: Heterogeneity = None,
    absence: Absence = None,
    task: TaskName = None,
    as_json: AsJson = False,
) -> None:
    """Recommend a policy for a condition, with its settings as YAML, and the measured evidence.

    The policy guide, docs/policy-guide.md, has all numbers and their limits.
    """
    from unstale_papers.guide.advice import advice, sentences, settings_text
    from unstale_papers.guide.evidence import load

    condition = {"staleness": staleness, "heterogeneity": heterogeneity, "absence": absence}
    found = advice(load(), condition, task)
    settings = settings_text(found, found.first.method)
    if as_json:
        printing.json_line("recommended", {**_facts(found), "settings": settings})
        return
    for sentence in sentences(found):
        printing.line(sentence)
    printing.line(f"\n# of unstale.yaml\n{settings.rstrip()}")


def _facts(found: "Advice") -> dict[str, Any]:
    return {
        "condition": dict(found.condition),
        "tasks": list(found.tasks),
        "seeds": found.evidence.seeds,
        "policies": [_of_policy(one) for one in found.standings],
    }


def _of_policy(one: "Standing") -> dict[str, Any]:
    regret = one.regret
    return {
        "policy": one.method,
        "regret": None if regret is None else regret.mean,
        "low": None if regret is None else regret.low,
        "high": None if regret is None else regret.high,
        "rank": one.rank,
        "lacking": one.lacking,
        "p": None if one.test is None else one.test.p,
        "is_behind": one.is_behind,
    }
