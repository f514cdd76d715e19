"""Settings of a user's own parts, beside the keys of their section."""

from typing import Any

import pytest

from support import plugged
from support.running import small
from unstale.client.workspace import training_context_of
from unstale.config import Settings
from unstale.config.workspace import training_context
from unstale.coordinator import selectors, triggers
from unstale.errors import UserError
from unstale.server.welcome import welcome
from unstale.settings.learning import (
    ObjectiveSettings,
    PartitionSettings,
    SelectorSettings,
    TrainingSettings,
    TriggerSettings,
)
from unstale.training import objectives, partition
from unstale.training import registry as trainings
from unstale_proto import codec


def trigger(name: str = "WithSettings", /, **settings: Any) -> Any:
    name = name if name.islower() else f"support.plugged:{name}"
    return triggers.create(TriggerSettings(name=name, settings=settings))


def test_each_kind_takes_settings_of_its_own() -> None:
    own = trigger(level=0.5, words=["a", "b"])
    assert own == plugged.WithSettings(k=5, level=0.5, words=("a", "b"))
    chosen = PartitionSettings(name="support.plugged:ScaledPartition", min_examples=3, settings={"share": 2})
    assert partition.create(chosen) == plugged.ScaledPartition(share=2, min_examples=3)
    made = trainings.create(TrainingSettings(name="support.plugged:ClippedTraining", steps=4, settings={"clip": 2}))
    assert (made.clip, made.style, made.steps) == (2.0, "norm", 4)
    picked = SelectorSettings(name="support.plugged:EvenSelector", settings={"even": True})
    assert selectors.create(picked, clients=3, availability=None) == plugged.EvenSelector(even=True)


def test_null_is_the_default() -> None:
    assert trigger(level=0.5, words=None).words == ()


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": (
        {"levels": 0.5},
        "unknown setting 'levels' of trigger 'support.plugged:WithSettings'; did you mean 'level'?",
    ),
    "missing": (
        {},
        "trigger 'support.plugged:WithSettings' needs 'level', and none was given; add trigger.settings.level, or give "
        "it a default",
    ),
    "another type": (
        {"level": "high"},
        "setting 'level' of trigger 'support.plugged:WithSettings' is 'high', expected a number > 0 and <= 1",
    ),
    "out of bounds": (
        {"level": 2},
        "setting 'level' of trigger 'support.plugged:WithSettings' is 2, expected a number > 0 and <= 1",
    ),
    "an entry": (
        {"level": 1, "words": [1]},
        "setting 'words' of trigger 'support.plugged:WithSettings' is [1], expected a list, each a text",
    ),
    "its own check": (
        {"level": 1, "words": ["a"] * 3},
        "trigger 'support.plugged:WithSettings' cannot be made (ValueError: three words)",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_one_sentence(case: str) -> None:
    settings, sentence = WRONG[case]
    with pytest.raises(UserError) as caught:
        trigger(**settings)
    assert str(caught.value) == sentence


def test_a_part_without_settings_refuses_them() -> None:
    for name, sentence in (
        ("async", "unknown setting 'level' of trigger 'async', which has no settings"),
        ("deadline", "unknown setting 'level' of trigger 'deadline'; expected one of wait_s"),
        ("pairs", "unknown setting 'level' of trigger 'support.plugged:pairs', which has no settings"),
    ):
        with pytest.raises(UserError) as caught:
            trigger(name if name != "pairs" else "support.plugged:pairs", level=1)
        assert str(caught.value) == sentence


def test_bounds_of_a_field_hold_for_a_setting() -> None:
    with pytest.raises(UserError, match=r"^setting 'share' of partition .* is 0, expected a whole number >= 1$"):
        partition.create(PartitionSettings(name="support.plugged:ScaledPartition", settings={"share": 0}))
    chosen = TrainingSettings(name="support.plugged:ClippedTraining", settings={"clip": 1, "style": "up"})
    with pytest.raises(UserError, match=r"^setting 'style' of training .* is 'up', expected one of norm, value$"):
        trainings.create(chosen)
    with pytest.raises(UserError, match=r"^unknown setting 'delta' of objective 'regression', which has no settings$"):
        objectives.create(ObjectiveSettings(name="regression", settings={"delta": 1}))


def own_run() -> Settings:
    return small(
        clients=4,
        partition={"name": "support.plugged:ScaledPartition", "min_examples": 3, "settings": {"share": 2}},
        training={"name": "support.plugged:ClippedTraining", "settings": {"clip": 2.0, "style": "value"}},
    )


def test_a_client_trains_with_the_settings_of_the_server() -> None:
    settings = own_run()
    context = training_context(settings)
    sent = codec.decode(codec.encode(welcome(settings, context.model, extra=False)))
    assert dict(sent.partition.settings) == {"min_examples": 3, "share": 2}
    assert sent.training.settings["clip"] == 2.0
    names = {part: {"name": getattr(settings, part).name} for part in ("partition", "training")}
    made = training_context_of(sent, Settings(**names))
    assert made.client_data.partition == context.client_data.partition
    assert made.trainer.training == context.trainer.training


def test_a_server_cannot_send_a_mapping_as_settings() -> None:
    settings = own_run()
    sent = welcome(settings, training_context(settings).model, extra=False)
    harmful = sent.model_copy(update={"training": type(sent.training)(name="sgd", settings={"clip": 3}, steps=5)})
    own = Settings(partition={"name": settings.partition.name})
    assert training_context_of(harmful, own).trainer.training.name == "sgd"
