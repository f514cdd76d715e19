"""The recommendations of the policy guide: sentences, settings and errors, from hand-made evidence."""

from itertools import product
from pathlib import Path

import pytest

from unstale.config.load import load as load_settings
from unstale.errors import UserError
from unstale_papers.guide.advice import advice, sentences, settings_text
from unstale_papers.guide.evidence import Evidence, Result, TaskMeasure

RATE, MULTIPLIER, ALPHA = "training.learning_rate", "policy.server_multiplier", "policy.settings.alpha"
DIGITS = TaskMeasure(title="digits", measure="final accuracy", better="higher", is_share=True)
REGRESSION = TaskMeasure(title="regression", measure="final mae", better="lower", is_share=False)
VALUES = {"REFL": (0.9, 0.8, 0.7), "DynSGD": (0.88, 0.81, 0.69), "FedAsync": (0.8, 0.7, 0.6)}
"""REFL is 10 points ahead of FedAsync with every seed; ahead of DynSGD by 2, -1 and 1 points, 0.67 on average."""


def evidence(tasks: tuple[str, ...] = ("digits",)) -> Evidence:
    """Equal results in all four conditions of two axes; rates differ by staleness, and by task."""
    results = []
    for task, staleness, absence, method in product(tasks, ("low", "high"), ("none", "half"), VALUES):
        rate = {"low": 0.3, "high": 0.1}[staleness] if task == "digits" else 0.01
        values = VALUES[method] if task == "digits" else tuple(1 - value for value in VALUES[method])
        rates = {RATE: rate, ALPHA if method == "FedAsync" else MULTIPLIER: 0.2}
        condition = {"staleness": staleness, "absence": absence}
        results.append(Result(task=task, condition=condition, method=method, values=values, rates=rates))
    known = {"digits": DIGITS, "regression": REGRESSION}
    return Evidence(tasks={task: known[task] for task in tasks}, results=tuple(results))


def test_the_sentences_name_policy_regret_runner_up_and_missing_tasks() -> None:
    found = advice(evidence(), {"staleness": "high", "absence": None})
    # Regrets of DynSGD: 2, -1 and 1, of deviation 1.528; Student's t is 4.303 with two degrees of freedom.
    # 0.67 / (1.528 / sqrt 3) is 0.756, whose p is 0.53.
    assert list(sentences(found)) == [
        "For staleness high: REFL.",
        "Its mean regret is 0.00 points (95 % interval 0.00 to 0.00), over 3 seeds of 1 task: digits.",
        "Runner-up: DynSGD, 0.67 points (95 % interval -3.13 to 4.46); the seeds do not tell the two apart (paired "
        "t-test, p = 0.53).",
        "There is no evidence yet of MNIST, CIFAR-10, regression and language model.",
    ]


def test_the_settings_are_a_part_of_a_configuration_file(tmp_path: Path) -> None:
    text = settings_text(advice(evidence(), {"staleness": "high", "absence": None}), "FedAsync")
    assert text == (
        "policy:\n  name: fedasync\n  settings:\n    alpha: 0.2\ntrigger:\n  name: k-async\ntraining:\n"
        "  learning_rate: 0.1\n"
    )
    file = tmp_path / "unstale.yaml"
    file.write_text(text)
    settings = load_settings(file)
    assert (settings.policy.name, settings.policy.settings) == ("fedasync", {"alpha": 0.2})
    assert settings.training.learning_rate == 0.1


def test_a_rate_that_differs_is_a_comment_and_no_setting() -> None:
    found = advice(evidence(("digits", "regression")), {"staleness": "low", "absence": None})
    assert settings_text(found, "REFL") == (
        "policy:\n  name: refl\n  server_multiplier: 0.2\ntrigger:\n  name: k-async\n"
        "# training.learning_rate: 0.3 (digits); 0.01 (regression)\n"
    )
    found = advice(evidence(), {"staleness": None, "absence": None})
    assert "# training.learning_rate: 0.3 (digits at staleness low); 0.1 (digits at staleness high)\n" in (
        settings_text(found, "REFL")
    )


def test_the_evidence_of_one_task_can_be_chosen() -> None:
    both = evidence(("digits", "regression"))
    assert advice(both, {"staleness": None, "absence": None}, "digits").tasks == ["digits"]
    assert advice(both, {"staleness": None, "absence": None}).tasks == ["digits", "regression"]


@pytest.mark.parametrize(
    ("condition", "task", "error"),
    [
        ({"staleness": "20"}, None, "--staleness is '20', of which there is no evidence, expected low or high"),
        ({}, "mnist", "--task is 'mnist', which has no results yet, expected one of digits"),
        ({}, "digit", "--task is 'digit'; did you mean 'digits'"),
    ],
)
def test_a_condition_without_evidence_is_an_error(condition: dict[str, str], task: str | None, error: str) -> None:
    with pytest.raises(UserError, match=error):
        advice(evidence(), condition, task)


def test_without_results_nothing_is_recommended() -> None:
    with pytest.raises(UserError, match="there is no evidence, so nothing can be recommended"):
        advice(Evidence(tasks={}, results=()), {"staleness": "low"})


def test_where_every_policy_diverged_nothing_is_recommended() -> None:
    condition = {"staleness": "low"}
    results = [Result(task="digits", condition=condition, method=name, values=(None,), rates={}) for name in VALUES]
    with pytest.raises(UserError, match="no evidence for staleness low: no policy has a number from every run"):
        advice(Evidence(tasks={"digits": DIGITS}, results=tuple(results)), condition)
