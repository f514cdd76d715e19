"""Mistakes in settings of compensators: one sentence each, before anything is computed."""

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from support.compensation import CLASSES, context, network
from support.running import small
from unstale.compensators import LocalSteps, Network, create
from unstale.config import build, compensation
from unstale.config.settings import Settings
from unstale.config.workspace import make_workspace
from unstale.errors import UserError
from unstale.simulator.assemble import simulation

INVERTING = ("gradient-inversion", "auto")


def message(name: str, where=None, **settings: Any) -> str:
    with pytest.raises(UserError) as caught:
        create(name, settings, where or context())
    return str(caught.value)


@pytest.mark.parametrize("name", INVERTING)
@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("images_max", 0, "a whole number or null from 1 to 4,096"),
        ("images_max", 4097, "a whole number or null from 1 to 4,096"),
        ("images_share", 0, "a number > 0 and <= 10"),
        ("iterations", 0, "a whole number from 1 to 10,000,000"),
        ("iterations", 2.5, "a whole number from 1 to 10,000,000"),
        ("iterations_per_round", 0, "a whole number or null >= 1"),
        ("iterations_total", 0, "a whole number or null >= 1"),
        ("seconds_per_round", 0, "a number or null > 0"),
        ("seconds_total", -1.0, "a number or null > 0"),
        ("learning_rate", float("nan"), "a number > 0 and <= 1,000"),
        ("residual", 1.5, "a number from 0 to 1"),
        ("window", 0, "a whole number from 1 to 1,000,000"),
        ("last_round", 0, "a whole number or null >= 1"),
        ("batch_clients", 0, "a whole number from 1 to 10,000"),
        ("preset", "quick", "one of fast, paper-sign-adam, reference"),
        ("preset", ["fast"], "one of fast, paper-sign-adam, reference"),
        ("optimiser", "sgd", "one of adam, sign-adam"),
        ("switch", "always", "one of matched, oracle, never"),
        ("warm_start", "perhaps", "true or false"),
    ],
    ids=str,
)
def test_an_invalid_setting_is_refused_with_the_expected_value(name, key, value, expected):
    assert message(name, **{key: value}) == (
        f"setting {key!r} of compensator {name!r} is {value!r}, expected {expected}"
    )


@pytest.mark.parametrize(
    ("name", "key", "near"),
    [
        ("first-order", "lambda", "lambda_"),
        ("auto", "iteration", "iterations"),
        ("oracle", "count_as_fresh", "counts_as_fresh"),
    ],
)
def test_a_setting_that_is_not_there_is_named_with_the_nearest(name, key, near):
    said = message(name, **{key: 1})
    assert said.startswith(f"unknown setting {key!r} of compensator {name!r}")
    assert near in said


def test_settings_that_do_not_go_together_are_both_named():
    said = message("auto", label_loss="bce-raw")
    assert said.startswith("compensator 'auto': labels_start is 'gradient'")
    assert "'normal' with label_loss 'bce-raw'" in said


@pytest.mark.parametrize("training", ["moon", "scaffold"])
@pytest.mark.parametrize("name", INVERTING)
def test_trainings_whose_updates_depend_on_more_are_refused_where_the_configuration_is_checked(name, training):
    settings = small(compensator={"name": name}, training={"name": training})
    with pytest.raises(UserError) as caught:
        compensation.check(settings)
    assert str(caught.value) == (
        f"training.name is {training!r}, whose updates depend on more than model and data, expected sgd, gradient or "
        "fedprox for gradient inversion; use compensator.name first-order"
    )


@pytest.mark.parametrize("training", ["moon", "scaffold"])
def test_first_order_goes_with_every_training_and_knows_its_steps(training):
    settings = small(
        compensator={"name": "first-order", "settings": {"strength": "adaptive"}},
        training={"name": training, "steps": 4, "batch_size": 8},
    )
    compensation.check(settings)
    assert compensation.local_steps(settings).of(8, 0.1) == (4, 0.1)


@pytest.mark.parametrize(
    ("training", "expected"),
    [
        ({"name": "gradient", "batch_size": 8, "steps": 5}, LocalSteps(batch_size=8)),
        ({"name": "sgd", "batch_size": 8, "steps": 5}, LocalSteps(steps=5, batch_size=8)),
        (
            {"name": "sgd", "batch_size": 8, "epochs": 2, "momentum": 0.5, "weight_decay": 0.01},
            LocalSteps(epochs=2, batch_size=8, momentum=0.5, weight_decay=0.01),
        ),
        ({"name": "fedprox", "steps": 5, "mu": 0.3}, LocalSteps(steps=5, batch_size=32, mu=0.3)),
    ],
    ids=str,
)
def test_local_steps_of_each_training(training, expected):
    assert compensation.local_steps(Settings(training=training)) == expected


def test_the_oracle_is_for_simulations_only():
    assert message("oracle") == (
        "compensator.name is 'oracle', which computes the clients' fresh updates and works in `unstale simulate` only, "
        "expected gradient-inversion, first-order, auto or none"
    )
    assert message("auto", switch="oracle") == (
        "compensator.settings.switch is 'oracle', but only a simulation knows true errors, expected matched or never"
    )


def test_a_simulation_counts_no_seconds():
    settings = small(compensator={"name": "auto", "settings": {"seconds_per_round": 2.0}})
    with pytest.raises(UserError, match=r"a simulation has no seconds to count.* set iterations_per_round"):
        simulation(settings, on_progress=lambda progress: None)


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("inversion", {}, "unknown compensator 'inversion'"),
        ("first-order", {"lambda_u": -1}, "setting 'lambda_u' of compensator 'first-order' is -1"),
        ("none", {"lambda_u": 1}, "compensator.settings.lambda_u is given with compensator.name 'none'"),
    ],
)
def test_the_configuration_is_checked_before_data_and_model_are_there(name, given, said):
    settings = small(compensator={"name": name, "settings": given})
    with pytest.raises(UserError, match=re.escape(said)):
        build.check(settings)


def test_a_configuration_that_only_a_simulation_can_tell_to_be_wrong_passes_the_check():
    compensation.check(small(compensator={"name": "oracle"}))
    compensation.check(small(compensator={"name": "auto", "settings": {"seconds_total": 5.0}}))


# Models.


class Plain(torch.autograd.Function):
    """Made before there was `setup_context`, as most are."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        return slope * 2


class Once(torch.autograd.Function):
    """Has a slope, which itself has none."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return slope * x.cos()


class Through(nn.Module):
    """A layer of such a function."""

    def __init__(self, function: type[torch.autograd.Function]) -> None:
        super().__init__()
        self._function = function

    def forward(self, x: Tensor) -> Tensor:
        return self._function.apply(x)


class Branches(nn.Module):
    """Computes other things for other numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if float(x.sum()) > 0 else x


def with_layer(layer: nn.Module) -> Network:
    return network(nn.Sequential(nn.Flatten(), nn.Linear(16, 6), layer, nn.Linear(6, CLASSES)))


@pytest.mark.parametrize("layer", [Through(Plain), Through(Once), Branches()], ids=["old style", "once", "branches"])
def test_a_model_that_cannot_be_differentiated_twice_is_refused(layer):
    with pytest.raises(UserError) as caught:
        with_layer(layer).check_invertible("mine:model")
    said = str(caught.value)
    assert said.startswith("model.name 'mine:model' has a layer that cannot be differentiated twice (")
    assert said.endswith("expected one that can for gradient inversion; use compensator.name first-order")
    assert "\n" not in said


@pytest.mark.parametrize("layer", [nn.ReLU(), nn.GELU(), nn.LayerNorm(6), nn.GroupNorm(2, 6), nn.Dropout(0.5)], ids=str)
def test_ordinary_layers_can_be_inverted(layer):
    net = with_layer(layer)
    net.check_invertible("mine:model")
    assert net._module.training


@pytest.mark.parametrize("name", ["digits_cnn", "logreg"])
def test_our_small_models_can_be_inverted(name):
    settings = small(compensator={"name": "auto"}, model={"name": name})
    made_ = compensation.compensator(settings, make_workspace(settings))
    assert made_ is not None
    assert made_.inverts


def test_a_model_with_batch_norm_is_refused_for_inversion_and_the_layer_named():
    settings = small(compensator={"name": "auto"}, model={"name": "support.factories:with_buffers"})
    with pytest.raises(UserError) as caught:
        simulation(settings, on_progress=lambda progress: None)
    assert str(caught.value) == (
        "model.name 'support.factories:with_buffers' has a layer of BatchNorm (2), whose updates depend on statistics "
        "of the client's batches, expected a model without for gradient inversion; use model.norm group, or "
        "compensator.name first-order"
    )


def test_a_model_with_batch_norm_can_be_compensated_to_first_order():
    settings = small(compensator={"name": "first-order"}, model={"name": "support.factories:with_buffers"})
    outcome = simulation(settings, on_progress=lambda progress: None).run()
    assert outcome.versions == settings.rounds


@pytest.mark.parametrize("name", [*INVERTING, "first-order", "oracle"])
def test_settings_can_be_looked_at_without_a_model(name):
    assert create(name, {}, replace(context(), network=None)) is not None
