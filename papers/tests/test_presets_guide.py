"""Presets of the policy guide, and the data sets and models that they bring."""

from collections import Counter
from math import e

import numpy as np
import pytest
import torch

from unstale.training.datasets import with_validation
from unstale.training.initialise import seeded
from unstale.training.partition import Examples, create
from unstale_papers.choose import chosen
from unstale_papers.guide.tasks import CONTEXT, GROUPS, NextByte, friedman, help_texts, regressor
from unstale_papers.preset import Preset
from unstale_papers.presets.guide import CLIENTS, METHODS, PRESETS, TASKS, found_rates
from unstale_papers.presets.registry import make

every_task = pytest.mark.parametrize("preset", [made() for made in PRESETS.values()], ids=PRESETS)


@every_task
def test_every_method_is_measured_in_every_condition(preset: Preset) -> None:
    conditions = Counter(
        tuple(cell.labels[axis] for axis in ("staleness", "heterogeneity", "absence")) for cell in preset.cells
    )
    assert len(conditions) == 8
    assert set(conditions.values()) == {len(METHODS)}


@every_task
def test_staleness_is_5_or_50_with_equally_many_updates(preset: Preset) -> None:
    for cell in preset.cells:
        k = cell.settings.trigger.k
        assert k is not None
        assert CLIENTS / k == {"low": 5, "high": 50}[cell.labels["staleness"]]
        assert cell.settings.rounds * k == TASKS[preset.name.removeprefix("guide-")].updates


def test_the_origin_of_a_preset_is_a_paper_or_the_guide() -> None:
    assert make("guide-mnist").origin == "MNIST of the policy guide"
    assert make("fh-t2").origin == "Table II, Fig. 3 of the paper on FedHist"


def test_absence_is_a_scenario_of_half_of_the_clients() -> None:
    for cell in make("guide-digits").cells:
        assert (cell.scenario is not None) == (cell.labels["absence"] == "half")
        assert cell.settings.scenario.name == ("exponential" if cell.scenario is None else None)


def test_the_searched_rates_are_those_of_the_cells() -> None:
    for task, found in found_rates().items():
        for cell in make(f"guide-{task}").cells:
            rates = found.rates[cell.labels["staleness"]][cell.labels["method"]]
            settings = cell.settings.model_dump()
            for key, value in rates.items():
                setting: object = settings
                for part in key.split("."):
                    assert isinstance(setting, dict)
                    setting = setting[part]
                assert setting == value, (cell.name, key)


def test_a_preset_can_be_chosen_from_by_its_conditions() -> None:
    ((_, cells),) = chosen([make("guide-text")], "staleness=high absence=half method=FedAvg")
    assert [cell.labels["heterogeneity"] for cell in cells] == ["iid", "non-iid"]


def test_the_regression_targets_are_friedmans_rounded() -> None:
    data = friedman()
    x = data.train.stored_NX.double() / 12**0.5 + 0.5
    exact = 10 * torch.sin(torch.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    noise = data.train.labels_N - exact
    # Noise of deviation 1, and rounding with variance 1/12.
    assert float(noise.mean()) == pytest.approx(0, abs=0.05)
    assert float(noise.var()) == pytest.approx(1 + 1 / 12, rel=0.1)
    assert regressor()(data.train_examples()[:3]).shape == (3, 1)


def test_each_client_has_a_passage_and_validation_is_of_all_passages_as_the_test_set_is() -> None:
    data = with_validation(help_texts(), 0.2)
    groups_n = data.train.groups_N
    assert groups_n is not None
    for split in (data.train, data.test):
        assert split.groups_N is not None
        assert len(split.groups_N.unique()) == GROUPS
    (partition,) = {
        cell.settings.partition for cell in make("guide-text").cells if cell.labels["heterogeneity"] != "iid"
    }
    examples = Examples(labels_n=np.zeros(len(groups_n), dtype=np.int64), groups_n=groups_n.numpy())
    create(partition).check(examples, CLIENTS)


def test_the_next_byte_follows_its_context() -> None:
    data = help_texts()
    contexts, labels = data.train.stored_NX, data.train.labels_N
    # Windows do not overlap and begin one context apart: the label of one is the first byte of the next one.
    follows = contexts[1:7, 0].long() == labels[:6]
    assert bool(follows.all())
    assert contexts.shape[1] == CONTEXT
    assert data.train.groups_N is not None
    sizes = torch.bincount(data.train.groups_N)
    assert len(sizes) == GROUPS
    assert int(sizes.max() - sizes.min()) <= 2


def test_an_untrained_language_model_is_near_the_uniform_distribution() -> None:
    data = help_texts()
    with seeded(0):
        logits = NextByte()(data.train_examples()[:500]).detach()
    loss = torch.nn.functional.cross_entropy(logits, data.train.labels_N[:500])
    assert e ** float(loss) == pytest.approx(128, rel=0.2)
