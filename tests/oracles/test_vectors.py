"""The golden sequences of the conformance kit match the oracles."""

import json
from itertools import product

import numpy as np
import pytest

from oracles.oracle import Update
from oracles.registry import ORACLES, cases, oracle
from oracles.sequences import MARGIN
from oracles.write_vectors import FOLDER, LOOPS, RUN

over_all_files = pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)


def vector(values):
    return np.array(values, dtype=np.float64)


def updates_of(step, models):
    return [
        Update(
            client=client,
            s=step["staleness"][i],
            g=vector(step["gradients"][i]),
            n=step["examples"][i],
            m=step["batch_sizes"][i],
            loss=step["losses"][i],
            eta_l=step["local_rates"][i],
            w_b=models[len(models) - 1 - step["staleness"][i]],
            extra=vector(step["extras"][i]) if "extras" in step else np.zeros(RUN["dimension"]),
        )
        for i, client in enumerate(step["clients"])
    ]


def test_every_policy_has_a_file():
    assert sorted(path.stem for path in FOLDER.glob("*.json")) == sorted(ORACLES)


@over_all_files
def test_a_file_contains_every_case_under_both_loops(path):
    written = json.loads(path.read_text(encoding="utf-8"))
    assert {key: written[key] for key in RUN} == RUN
    listed = [case for case in cases(RUN["clients"]) if case.policy == path.stem]
    assert [(case["profile"], case["settings"], case["loop"]) for case in written["cases"]] == [
        (case.profile, case.settings, loop) for case, loop in product(listed, LOOPS)
    ]


@over_all_files
def test_the_oracle_computes_the_models_of_the_file(path):
    written = json.loads(path.read_text(encoding="utf-8"))
    for case in written["cases"]:
        subject = oracle(path.stem, profile=case["profile"], **RUN, **case["settings"])
        models = [vector(case["model"])]
        assert len(case["steps"]) == RUN["rounds"]
        for step in case["steps"]:
            models.append(subject.step(models[-1], updates_of(step, models), step["rate"]))
            assert subject.margin > MARGIN
            assert subject.counts == step["counts"]
            np.testing.assert_allclose(subject.weights, step["weights"], atol=1e-11, rtol=0)
            np.testing.assert_allclose(models[-1], step["model"], atol=1e-11, rtol=0)
            if "sent" in step:
                np.testing.assert_allclose(subject.sent(), step["sent"], atol=1e-11, rtol=0)


@over_all_files
def test_every_input_is_exact_in_float32(path):
    written = json.loads(path.read_text(encoding="utf-8"))
    for case in written["cases"]:
        for step in case["steps"]:
            for name in ("gradients", "losses", "local_rates", "extras", "rate"):
                values = vector(step.get(name, 0.0))
                assert (values.astype(np.float32) == values).all()
