"""`data.variant`: a data set that takes the place of another, from the keys to the trainer's examples."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.running import small
from support.variant import small_and_large, write
from unstale.config import Settings, build
from unstale.config.data import ClientData, read_dataset
from unstale.config.load import load
from unstale.config.workspace import training_context
from unstale.errors import UserError
from unstale.server.run import prepare


def settings_of(folder: Path, **variant: Any) -> Settings:
    data = small_and_large(folder)
    data["variant"] |= variant
    return small(clients=3, data=data)


def sentence_of(settings: Settings, does: Any) -> str:
    with pytest.raises(UserError) as raised:
        does(settings)
    return str(raised.value)


def test_a_run_on_data_that_changes_has_the_shape_of_the_second_and_both_test_sets(tmp_path: Path) -> None:
    data = read_dataset(settings_of(tmp_path).data)
    assert (data.input_shape, data.classes) == ((3, 8, 8), 3)
    assert (len(data.train.labels_N), len(data.test.labels_N)) == (90, 60)
    assert data.later is not None
    assert (len(data.later.labels_L), data.later.rate) == (90, 1.5)


def test_clients_own_test_examples_come_from_both(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    data = read_dataset(settings.data)
    own = ClientData.of(settings, data).test(ClientData.of(settings, data).train())
    assert own is not None
    assert sorted(np.concatenate(own)) == list(range(60))


def test_a_client_of_a_workplace_holds_what_the_stream_says(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    context = training_context(settings)
    shares = ClientData.of(settings, context.dataset).train()
    changes = ClientData.of(settings, context.dataset).changes(shares)
    assert changes is not None
    inputs_nX, _ = context.trainer.examples(1, 10)
    is_later_n = changes.indices(1, 10) >= 90
    assert is_later_n.sum() == 15  # floor(1.5 * 10)
    # The first column of each picture is no darker than the others, but for those of class 0.
    means_n = inputs_nX.mean(dim=(1, 2, 3))
    assert means_n[is_later_n].min() > means_n[~is_later_n].max()


def test_data_that_stays_needs_no_stream() -> None:
    settings = small()
    data = read_dataset(settings.data)
    assert data.later is None
    assert ClientData.of(settings, data).changes(ClientData.of(settings, data).train()) is None


@pytest.mark.parametrize(
    ("variant", "said"),
    [
        (
            {"name": "digits"},
            "data.variant.name is 'digits', but data.variant.rate is not given; add it: how many of a client's "
            "examples give way at each version, such as 0.25",
        ),
        (
            {"rate": 0.25},
            "data.variant.rate is 0.25, but data.variant.name is not given; add it: the data set whose examples take "
            "the place of those of data.name",
        ),
        (
            {"path": "later.npz"},
            "data.variant.path is 'later.npz', but data.variant.name is not given; add it: the data set whose examples "
            "take the place of those of data.name",
        ),
        (
            {"name": "npz", "rate": 0.25},
            "data set 'npz' needs a path to a file with x_train, y_train, x_test and y_test; name it with "
            "data.variant.path",
        ),
        ({"name": "mnits", "rate": 0.25}, "unknown data set 'mnits'; did you mean 'mnist'?"),
    ],
    ids=["no rate", "no name", "a path alone", "no path", "unknown name"],
)
def test_a_wrong_variant_is_reported_before_anything_starts(variant: dict[str, Any], said: str) -> None:
    settings = Settings(data={"variant": variant})
    assert sentence_of(settings, build.check) == said
    assert sentence_of(settings, lambda settings: read_dataset(settings.data)) == said


@pytest.mark.parametrize("rate", ["0", "-1"])
def test_a_rate_is_more_than_nothing(rate: str) -> None:
    with pytest.raises(UserError) as raised:
        load(variables={"UNSTALE_DATA__VARIANT__NAME": "digits", "UNSTALE_DATA__VARIANT__RATE": rate})
    assert str(raised.value) == (
        f"UNSTALE_DATA__VARIANT__RATE: data.variant.rate is '{rate}', expected a number from 1e-06 to 1,000,000 or null"
    )


@pytest.mark.parametrize("does", [training_context, prepare], ids=["clients and simulator", "server"])
def test_both_sides_say_what_cannot_be_replaced(tmp_path: Path, does: Any) -> None:
    assert sentence_of(settings_of(tmp_path, rate=1000.0), does) == (
        "data.variant.rate is 1000, but no client holds more than 30 examples, so all would be replaced at once; "
        "expected at most 30"
    )
    path = write(tmp_path / "few.npz", side=8, channels=3, brightness=90, seed=2)
    few = dict(np.load(path))
    few |= {"x_train": few["x_train"][:6], "y_train": np.arange(6) % 3}
    np.savez(path, **few)
    said = sentence_of(settings_of(tmp_path, path=str(path)), does)
    assert "of class 0, but there are only 2 new ones to replace them" in said


def test_of_groups_the_test_set_knows_nothing(tmp_path: Path) -> None:
    data = small_and_large(tmp_path)
    whose = {"writer_train": np.arange(90) // 30, "writer_test": np.arange(30) // 10}
    np.savez(data["path"], **dict(np.load(data["path"])), **whose)
    data["column"] = "writer"
    settings = small(clients=3, data=data, partition={"name": "column"}, evaluate_clients_every=1)
    assert [len(share) for share in ClientData.of(settings, read_dataset(settings.data)).train()] == [30] * 3
    said = sentence_of(settings, lambda settings: build.run_components(settings, lambda *_, **__: None))
    assert "does not say whose its examples are" in said
