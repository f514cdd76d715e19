"""The policy guide as Markdown, made from the evidence alone. Pure.

Legend: K updates of a round, N clients.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from textwrap import fill

from unstale.errors import UserError
from unstale.report.content import NONE, count, listed
from unstale_papers.guide.advice import Advice, advice, interval_text, named
from unstale_papers.guide.evidence import Evidence, Result, Standing
from unstale_papers.presets.guide import CLIENTS, METHODS, TASKS, UPDATES_OF_A_ROUND, Found
from unstale_papers.table_metrics import measure

WIDTH = 120  # of a line of text

_INTRODUCTION = """\
# Policy guide

This page says which aggregation policy fits which staleness, heterogeneity and absence of clients, so that nobody has
to read the papers for a first choice. `python -m unstale_papers.guide write` makes it from measured results, and the
package [unstale-papers](../papers/README.md) contains the same results for the command line:

```sh
unstale recommend --staleness high --heterogeneity non-iid --absence half
unstale recommend --staleness high --task digits             # only the evidence of one task
```

The output is the policy, its settings as a part of `unstale.yaml`, the runner-up, and the evidence. A condition that
is left out counts with the mean over its values."""

_AXES = """\
## Conditions

| condition | value | meaning |
|---|---|---|
| staleness | low | trigger `k-async` with {low} updates of {clients} clients: N/K, the mean of s + 1, is {ratio_low} |
| | high | {high} updates, N/K {ratio_high} |
| heterogeneity | iid | each client has a random part of the data |
| | non-iid | classes by `dirichlet` with alpha 0.1; of the language model, a passage of the texts for each client |
| absence | none | clients are always there; tasks take exponential times |
| | half | half of the clients are away half of the time, for three mean task times on average |"""

_READING = """\
**Regret** is how far a policy is behind the best one of the same task and condition, with the same seed, in points:
percentage points of accuracy, per cent of the best policy's mean for other measures. The best one has the best mean
over seeds; in a single seed another one may be ahead of it, with a regret below 0. The regret is the mean over tasks,
with the 95 % interval of the mean over seeds (Student's t). **Rank** is the mean rank over tasks, 1 for the best.
**Not told apart** are policies with p >= 0.05 in the paired t-test over seeds of the regrets (two-sided): these seeds
do not tell them from the recommended one, which does not say that the difference is small. The tests are not corrected
for their number."""

_LIMITS = """\
## Limits

- All runs are short and simulated, with small models. Absolute numbers are not comparable with the literature. Those of
  CIFAR-10 end early in a training, with accuracies of 10 to 31 %.
- Each policy has its default settings. Only the learning rate of clients and the size of the server's step were
  searched (`policy.settings.alpha` for FedAsync, `policy.server_multiplier` for the others), for each task and
  staleness, on a validation split of non-iid data without absence, with one seed. Other conditions have these rates.
- Staleness begins at 0, and a client contributes only 4 (regression) to 30 times (language model) in a run, so the mean
  staleness is below the N/K - 1 of a long run, above all at the high level.
- Points of different measures are averaged, so a task whose measure differs more between policies has more influence on
  the mean regret. The mean rank and `--task` do not have this property.
- A run has as many updates at both levels of staleness, and so a tenth of the rounds at the low one, which favours
  policies that learn fast in the first rounds.
- FedAR and FedVARP are published for rounds that wait; here the senders of a round take the place of the available
  clients. FedAsync is published for K = 1.
- Between the measured values of a condition, and beyond them, there is no evidence."""


def text(evidence: Evidence, found: Mapping[str, Found]) -> str:
    """The page. found: the searched rates, with their commands, by task."""
    parts = [
        _INTRODUCTION,
        _basis(evidence),
        "\n\n".join(
            ["## Recommendations", _READING, _decisions(evidence), _edges(evidence, found), _by_task(evidence)]
        ),
        _AXES.format(**_numbers()),
        _tasks(evidence),
        *_conditions(evidence),
        _rates(evidence, found),
        _commands(evidence, found),
        _LIMITS,
    ]
    return "\n\n".join(parts) + "\n"


def _numbers() -> dict[str, object]:
    low, high = (UPDATES_OF_A_ROUND[label] for label in ("low", "high"))
    ratios = {"ratio_low": CLIENTS // low, "ratio_high": CLIENTS // high}
    return {"clients": CLIENTS, "low": low, "high": high, **ratios}


def _basis(evidence: Evidence) -> str:
    titles = [one.title for one in evidence.tasks.values()]
    absent = [task.title for name, task in TASKS.items() if name not in evidence.tasks]
    rest = f" There are no results yet of {listed(absent)}." if absent else ""
    tasks, seeds = count(len(titles), "task"), count(evidence.seeds, "seed")
    return fill(f"**The figures are of {tasks}: {listed(titles)}, with {seeds}.**{rest}", WIDTH)


def _decisions(evidence: Evidence) -> str:
    axes = evidence.axes
    every = [dict(zip(axes, labels, strict=True)) for labels in product(*axes.values())]
    rows = [_decision(evidence, condition, list(axes)) for condition in [*every, {}]]
    return _table([*axes, *_DECISION], rows)


_DECISION = ("policy", "rank", "regret", "interval", "not told apart")


def _decision(evidence: Evidence, condition: Mapping[str, str], axes: Sequence[str]) -> list[str]:
    return [*(condition.get(axis, "any") for axis in axes), *_decided(evidence, condition)]


def _decided(evidence: Evidence, condition: Mapping[str, str], task: str | None = None) -> list[str]:
    """The columns of _DECISION."""
    try:
        found = advice(evidence, condition, task)
    except UserError:
        return ["no evidence", NONE, NONE, NONE, NONE]
    first, alike = found.first, [one.method for one in found.alike]
    return [first.method, f"{first.rank:.1f}", *_regret(first), listed(alike, most=len(alike)) or NONE]


def _by_task(evidence: Evidence) -> str:
    rows = [[one.title, *_decided(evidence, {}, name)] for name, one in evidence.tasks.items()]
    return "\n\n".join([_BY_TASK, _table(["task", *_DECISION], rows)])


_BY_TASK = """\
A recommendation is a compromise between tasks that prefer different policies. Over all conditions the least regret has,
by task (`--task` shows the conditions of one):"""


def _regret(one: Standing) -> tuple[str, str]:
    if one.regret is None:
        return NONE, NONE
    return f"{one.regret.mean:.2f}", interval_text(one) or NONE


def _tasks(evidence: Evidence) -> str:
    rows = [
        [
            *(task.title, f"`{task.data}`", f"`{task.model}`", task.measure, f"{task.updates:,}"),
            " and ".join(f"{task.updates // k:,}" for k in UPDATES_OF_A_ROUND.values()),
            "yes" if has else "no",
        ]
        for task, has in ((task, name in evidence.tasks) for name, task in TASKS.items())
    ]
    heads = ["task", "data", "model", "measure", "updates of a run", "rounds at low and high staleness", "results"]
    return "\n\n".join(["## Tasks", _table(heads, rows), _TASKS])


_TASKS = """\
Regression is Friedman's first problem, whose targets are rounded to whole numbers. The language model predicts the next
byte of the texts of Python's `help` from the twelve before it. MNIST and CIFAR-10 use a fifth of the examples. A final
number is the mean of the last ten evaluations, which are in the last third of a run, at low staleness in the last half.
`unstale reproduce show guide-digits` prints all settings of a task."""


def _conditions(evidence: Evidence) -> Iterator[str]:
    yield "## All policies"
    axes = evidence.axes
    for labels in product(*axes.values()):
        condition = dict(zip(axes, labels, strict=True))
        yield f"### {named(condition).capitalize()}"
        try:
            yield _ranking(advice(evidence, condition))
        except UserError as error:
            yield f"{error}"[:1].upper() + f"{error}"[1:] + "."


def _ranking(found: Advice) -> str:
    evidence = found.evidence
    results = {(one.task, one.method): one for one in evidence.matching(found.condition, found.tasks)}
    heads = ["policy", "rank", "regret", "interval", "p", *(_heading(evidence, task) for task in found.tasks)]
    rows = [
        [
            *(one.method, f"{one.rank:.1f}", *_regret(one), NONE if one.test is None else f"{one.test.p:.2g}"),
            *(_value(results[task, one.method]) for task in found.tasks),
        ]
        for one in found.standings
    ]
    return _table(heads, rows, texts=1)


def _heading(evidence: Evidence, task: str) -> str:
    one = evidence.tasks[task]
    return f"{one.title}: {measure(one.measure).heading}"


def _value(one: Result) -> str:
    """The mean over seeds; `diverged (1 of 3)` where seeds have no number."""
    if one.lacking:
        return f"diverged ({one.lacking} of {len(one.values)})"
    return measure(TASKS[one.task].measure).text(one.mean)


def _rates(evidence: Evidence, found: Mapping[str, Found]) -> str:
    columns = [(task, level) for task in evidence.tasks for level in evidence.axes["staleness"]]
    texts = {place: _rates_text(of_place) for place, of_place in _by_place(evidence, found).items()}
    heads = ["policy", *(f"{evidence.tasks[task].title}, {level}" for task, level in columns)]
    rows = [[method, *(texts[task, level, method] for task, level in columns)] for method in METHODS]
    return "\n\n".join(["## Rates", _RATES, _table(heads, rows)])


def _by_place(evidence: Evidence, found: Mapping[str, Found]) -> dict[tuple[str, str, str], list[tuple[float, bool]]]:
    """Each rate, and whether it is at an edge of what was searched, by task, staleness and method."""
    places = {}
    for one in evidence.results:
        level = one.condition["staleness"]
        grid = found[one.task].searched[level][one.method]
        rates = [(value, value in (grid[key][0], grid[key][-1])) for key, value in one.rates.items()]
        places[one.task, level, one.method] = rates
    return places


def _rates_text(rates: Iterable[tuple[float, bool]]) -> str:
    """`0.3 / 1*`."""
    return " / ".join(f"{value:g}{'*' if is_edge else ''}" for value, is_edge in rates)


def _edges(evidence: Evidence, found: Mapping[str, Found]) -> str:
    places = _by_place(evidence, found).values()
    at_edge = sum(any(is_edge for _, is_edge in rates) for rates in places)
    return fill(
        f"In {at_edge} of {len(places)} searches the best rate is at the edge of what was searched ([Rates](#rates)): "
        "a better one, and another order of the policies, is possible.",
        WIDTH,
    )


_RATES = """\
`training.learning_rate` / `policy.server_multiplier`, for FedAsync `policy.settings.alpha`, by task and staleness. A
star marks the least or the greatest value that was searched: a better one may lie beyond it."""


def _commands(evidence: Evidence, found: Mapping[str, Found]) -> str:
    names = " ".join(evidence.tasks)
    presets = " ".join(f"guide-{task}" for task in evidence.tasks)
    lines = [
        f"python -m unstale_papers.guide tune {names}",
        f"unstale reproduce run {presets} --seeds {evidence.seeds}",
        f"python -m unstale_papers.guide write {names} --seeds {evidence.seeds}",
    ]
    searches = [command for task in evidence.tasks for command in found[task].commands]
    block = "\n".join(["```sh", *lines, "```"])
    sentence = "The first command runs these searches, after narrower ones, and writes the rates that they find:"
    return "\n\n".join(["## The same again", block, sentence, "\n".join(["```text", *searches, "```"])])


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], texts: int | None = None) -> str:
    """A Markdown table. texts: columns before the first one of numbers; None for texts only."""
    rules = ["---" if texts is None or number < texts else "---:" for number in range(len(heads))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, rules, *rows))
