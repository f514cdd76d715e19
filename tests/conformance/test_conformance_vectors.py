"""The golden vectors of the kit: an oracle reproduces each, and wrong policies are detected."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from oracles.oracle import Update
from oracles.registry import oracle
from unstale.conformance import appendix_b, golden, identities
from unstale.conformance.finding import off
from unstale.conformance.golden import Round, Sequel
from unstale.policies import names, registry

FEDAVG = golden.written("fedavg")[0]
CPU = torch.device("cpu")


def updates_of(played: Round) -> list[Update]:
    extras = played.extras or [None] * len(played.clients)
    return [
        Update(
            client=played.clients[i],
            s=played.staleness[i],
            g=np.array(played.gradients[i]),
            n=played.examples[i],
            m=played.batch_sizes[i],
            loss=played.losses[i],
            eta_l=played.local_rates[i],
            extra=None if extras[i] is None else np.array(extras[i]),
        )
        for i in range(len(played.clients))
    ]


@pytest.mark.parametrize("example", appendix_b.EXAMPLES, ids=lambda example: f"{example.policy} {example.case}")
def test_an_example_of_appendix_b_equals_the_oracle(example: Sequel) -> None:
    second = oracle(example.policy, **example.run, **example.settings)
    w = np.array(example.model)
    for played in example.rounds:
        w_next = second.step(w, updates_of(played), played.rate)
        if played.model is not None:
            np.testing.assert_allclose(w_next, played.model, atol=2e-8)
        if played.sent is not None:
            np.testing.assert_allclose(second.c, played.sent, atol=1e-12)


def test_a_sequence_is_reproduced() -> None:
    finding = golden.reproduces(FEDAVG, CPU)
    assert finding.passed
    assert finding.expected == "within 1e-06 of the written results"


def test_a_wrong_result_is_detected_with_its_round() -> None:
    third = FEDAVG.rounds[2]
    wrong = replace(third, model=[value + 1e-3 for value in third.model])
    finding = golden.reproduces(replace(FEDAVG, rounds=(*FEDAVG.rounds[:2], wrong)), CPU)
    assert not finding.passed
    assert finding.got.endswith("off in round 2")


def test_a_non_finite_result_is_detected() -> None:
    wrong = replace(FEDAVG.rounds[0], model=[float("nan")] * len(FEDAVG.model))
    assert not golden.reproduces(replace(FEDAVG, rounds=(wrong,)), CPU).passed


def test_a_round_that_wrongly_counts_is_detected() -> None:
    wrong = replace(FEDAVG.rounds[0], counts=False)
    finding = golden.reproduces(replace(FEDAVG, rounds=(wrong,)), CPU)
    assert (finding.passed, finding.expected, finding.got) == (False, "counts False", "counts True in round 0")


def test_wrong_weights_are_detected() -> None:
    first = FEDAVG.rounds[0]
    wrong = replace(first, weights=[7.0 for _ in first.weights])
    finding = golden.reproduces(replace(FEDAVG, rounds=(wrong,)), CPU)
    assert not finding.passed
    assert finding.got.startswith("weights ")


def test_a_policy_without_a_file_has_no_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._BUILT_IN, "own", registry.find("fedavg"))
    assert golden.written("own") == ()


def test_every_policy_of_the_folder_has_sequences() -> None:
    assert [name for name in names() if not golden.written(name)] == []


def test_identities_and_examples_belong_to_policies_with_sequences() -> None:
    named = {each.policy for each in (*identities.IDENTITIES, *appendix_b.EXAMPLES)}
    assert [policy for policy in sorted(named) if not golden.written(policy)] == []


@pytest.mark.parametrize(
    ("got", "expected", "error"), [(1.5, 1.0, 0.5), (20.0, 10.0, 1.0), (float("nan"), 1.0, float("inf"))]
)
def test_an_error_is_relative_to_the_expected_value_and_nan_is_infinitely_wrong(got, expected, error) -> None:
    assert off(torch.tensor([0.0, got]), torch.tensor([0.0, expected])) == error


def test_a_violated_identity_is_detected() -> None:
    (same,) = [each for each in identities.of("sasgd") if each.when == "everybody fresh"]
    assert identities.hold(same, CPU).passed
    stale = replace(same, change=lambda batch: batch)
    assert not identities.hold(stale, CPU).passed
