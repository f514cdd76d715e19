"""Parts made from the configuration, and what is wrong with them before anything starts."""

from typing import Any

import pytest

from unstale.config import Settings, load
from unstale.config.parts import check, coordinator_settings, policy, rate, training
from unstale.coordinator.triggers import TRIGGERS
from unstale.errors import UserError
from unstale.policies import names


def from_variables(**values: str) -> Settings:
    return load(variables={f"UNSTALE_{name.upper()}": value for name, value in values.items()})


def test_the_defaults_can_be_made() -> None:
    check(Settings())


@pytest.mark.parametrize("name", names())
def test_every_policy_can_be_chosen_by_its_name_alone(name: str) -> None:
    check(from_variables(policy__name=name))


@pytest.mark.parametrize("name", [name for name in TRIGGERS if name != "deadline"])
def test_every_trigger_but_the_one_that_needs_a_time_can_be_chosen_by_its_name_alone(name: str) -> None:
    told = coordinator_settings(from_variables(trigger__name=name))
    assert told.trigger.name == name
    assert told.trigger.k == (None if name in ("sync", "async") else 5)


@pytest.mark.parametrize("name", ["k-async", "k-sync", "buffered"])
def test_a_k_that_nobody_gave_is_at_most_the_number_of_clients(name: str) -> None:
    assert coordinator_settings(from_variables(trigger__name=name, clients="4")).trigger.k == 4
    assert coordinator_settings(from_variables(trigger__name=name, clients="6")).trigger.k == 5


def test_the_deadline_trigger_needs_its_time() -> None:
    told = coordinator_settings(from_variables(trigger__name="deadline", trigger__wait_s="2.5"))
    assert (told.trigger.wait_s, told.trigger.k) == (2.5, None)


def test_epochs_take_the_place_of_steps() -> None:
    made: Any = training(from_variables(training__epochs="3"))
    assert (made.epochs, made.steps) == (3, None)


def test_the_gradient_mode_takes_the_batch_size() -> None:
    made: Any = training(from_variables(training__name="gradient", training__batch_size="17"))
    assert (made.kind, made.batch_size) == ("gradient", 17)


def test_the_servers_rate_is_its_multiplier_times_the_clients_rate() -> None:
    # eta = eta_g * eta_l = 0.5 * 0.25 = 0.125
    assert rate(from_variables(policy__server_multiplier="0.5", training__learning_rate="0.25")) == 0.125


def test_the_settings_of_the_policy_reach_it() -> None:
    made = policy(
        from_variables(policy__name="dynsgd", policy__settings__normalise="false"), dimension=3, where="cpu"
    )
    assert made.settings.normalise is False
    assert (made.dimension, made.clients) == (3, 20)


WRONG = {
    "unknown model 'logrec'; did you mean 'logreg'?": {"model__name": "logrec"},
    "unknown data set 'digit'; did you mean 'digits'?": {"data__name": "digit"},
    "data.path is null, expected the path of the file that data.name npz reads": {"data__name": "npz"},
    "unknown policy 'fedbuf'; did you mean 'fedbuff'?": {"policy__name": "fedbuf"},
    "unknown setting 'normalize' of policy 'dynsgd'; did you mean 'normalise'?": {
        "policy__name": "dynsgd",
        "policy__settings": "{normalize: true}",
    },
    "policy.settings.clients is given, expected settings that `unstale policies` lists": {
        "policy__settings": "{clients: 3}"
    },
    "unknown trigger 'kasync'; did you mean 'k-async'?": {"trigger__name": "kasync"},
    "trigger.k is 21 with 20 clients, expected 1 to 20": {"trigger__k": "21"},
    "trigger.k is 5 with 4 clients, expected 1 to 4": {"trigger__k": "5", "clients": "4"},
    "trigger 'sync' takes no trigger.k, got 7; leave it out": {"trigger__name": "sync", "trigger__k": "7"},
    "trigger 'k-async' needs trigger.k, and none was given": {"trigger__k": "null"},
    "trigger 'deadline' needs trigger.wait_s, and none was given": {"trigger__name": "deadline"},
    "unknown selector 'al'; did you mean 'all'?": {"selector__name": "al"},
    "selector 'random' needs selector.size, and none was given": {"selector__name": "random"},
    "min_clients is 21 with 20 clients, expected 1 to 20": {"min_clients": "21"},
}


@pytest.mark.parametrize(("sentence", "values"), WRONG.items())
def test_what_only_a_part_knows_is_told_before_anything_starts(sentence: str, values: dict[str, str]) -> None:
    with pytest.raises(UserError) as raised:
        check(from_variables(**values))
    assert str(raised.value) == sentence


@pytest.mark.parametrize(
    ("trigger", "given", "weighting"),
    [("sync", {}, "samples"), ("k-async", {}, "uniform"), ("sync", {"weighting": "uniform"}, "uniform")],
)
def test_fedavg_weighs_by_samples_in_synchronous_rounds_unless_told_otherwise(
    trigger: str, given: dict[str, str], weighting: str
) -> None:
    settings = Settings(policy={"name": "fedavg", "settings": given}, trigger={"name": trigger})
    assert policy(settings, 4, "cpu").settings.weighting == weighting
