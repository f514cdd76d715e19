"""Several runs: groups by settings, means with their interval, labels, pictures and the page."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

import unstale
from support import line
from support.line import IN_ROUNDS, STEP

T_2 = 4.302652729911275  # 97.5 % quantile of Student's t with 2 degrees of freedom


@pytest.fixture(scope="module")
def runs() -> unstale.Runs:
    return unstale.simulate(line.central, **IN_ROUNDS, seeds=[5, 6, 7])


def test_several_seeds_are_a_group(runs: unstale.Runs) -> None:
    assert [run.settings.seed for run in runs] == [5, 6, 7]
    (row,) = runs.frame.to_dict("records")
    assert row["group"] == "fedavg" and row["runs"] == 3
    assert [row[f"value_{part}"] for part in ("mean", "low", "high")] == pytest.approx([-4 * STEP] * 3)
    assert row["staleness_mean"] == 0


def test_the_interval_is_that_of_students_t(runs: unstale.Runs) -> None:
    measured = [replace(run, metrics={"value": value}) for run, value in zip(runs, [1.0, 2.0, 6.0], strict=True)]
    (row,) = unstale.compare(measured).frame.to_dict("records")
    half = T_2 * 7**0.5 / 3**0.5  # the variance is (4 + 1 + 9) / 2
    assert (row["value_mean"], row["value_low"], row["value_high"]) == pytest.approx((3, 3 - half, 3 + half))


def test_a_sweep_has_a_run_for_each_combination_and_seed() -> None:
    over = {"policy": ["fedavg", "dynsgd"], "training.learning_rate": [0.5, 0.25]}
    arguments = {**IN_ROUNDS, "training": {"schedule": {"name": "constant"}}}
    runs = unstale.sweep(line.central, over=over, seeds=[0, 1], **arguments)
    assert len(runs) == 8
    frame = runs.frame
    assert [*frame.columns[:4]] == ["group", "training.learning_rate", "policy.name", "runs"]
    assert frame["policy.name"].tolist() == ["fedavg", "fedavg", "dynsgd", "dynsgd"]
    assert frame["training.learning_rate"].tolist() == [0.5, 0.25, 0.5, 0.25]
    assert frame.runs.tolist() == [2, 2, 2, 2]
    assert frame.value_mean[:2].tolist() == pytest.approx([-4 * STEP, -2 * STEP])
    assert len(runs[2:4]) == 2 and isinstance(runs[2:4], unstale.Runs)


def test_a_sweep_checks_all_settings_before_its_first_run(tmp_path: Path) -> None:
    with pytest.raises(unstale.UserError, match="argument rounds: rounds is 0"):
        unstale.sweep(line.central, over={"rounds": [4, 0]}, directory=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
    with pytest.raises(unstale.UserError, match="policy is 'fedavg', expected a list of values"):
        unstale.sweep(line.central, over={"policy": "fedavg"})


def test_a_sweep_records_each_run_in_a_folder(tmp_path: Path) -> None:
    unstale.sweep(line.central, over={"rounds": [1, 2]}, directory=tmp_path, **{**IN_ROUNDS, "rounds": 9})
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["0", "1"]


def test_more_groups_than_a_picture_can_show_have_a_table(runs: unstale.Runs) -> None:
    many = unstale.compare([runs[0]] * 30, [f"run {number}" for number in range(30)])
    assert len(many.frame) == 30


def test_labels_name_items_of_one_or_several_runs(runs: unstale.Runs) -> None:
    one = unstale.simulate(line.central, **{**IN_ROUNDS, "rounds": 2})
    compared = unstale.compare([one, runs], ["short", "long"])
    assert compared.frame.group.tolist() == ["short", "long"]
    assert compared.frame.runs.tolist() == [1, 3]
    assert compared.frame.value_mean.tolist() == pytest.approx([-2 * STEP, -4 * STEP])
    assert unstale.compare([one, runs]).frame.group.tolist() == ["rounds 2", "rounds 4"]


@pytest.mark.parametrize(
    ("items", "labels", "message"),
    [
        ([], None, r"runs is \[\], expected a list of runs"),
        ([3], None, "runs has a int, expected results of unstale.simulate"),
        (None, ["a"], r"labels is \['a'\], expected a name for each of 3 runs"),
        (None, "abc", "labels is 'abc', expected a name for each of 3 runs"),
    ],
)
def test_wrong_items_and_labels_are_one_sentence(runs: unstale.Runs, items: Any, labels: Any, message: str) -> None:
    with pytest.raises(unstale.UserError, match=message):
        unstale.compare([*runs] if items is None else items, labels)


def test_a_picture_has_the_main_metric_the_loss_and_the_staleness(runs: unstale.Runs, tmp_path: Path) -> None:
    figure = runs[0].plot()
    assert [axes.get_ylabel() for axes in figure.axes] == ["value (test)", "loss (test)", "share of updates"]
    assert {axes.get_xlabel() for axes in figure.axes[:2]} == {"virtual time, s"}
    (values,) = figure.axes[0].lines
    assert values.get_ydata().tolist() == runs[0].evaluations.value.tolist()
    (tmp_path / "picture.png").write_bytes(figure._repr_png_())  # as notebooks show it
    assert imread(tmp_path / "picture.png").shape[:2] == (330, 1221)


def test_a_picture_has_the_loss_of_the_training_where_clients_do_not_measure_it() -> None:
    figure = unstale.simulate(line.app, **IN_ROUNDS, evaluate_clients_every=1).plot()
    assert [axes.get_ylabel() for axes in figure.axes] == ["value (clients)", "loss (training)", "share of updates"]
    (losses,) = figure.axes[1].lines
    assert losses.get_ydata().tolist() == pytest.approx([14 / 6] * 4)


def test_a_picture_names_the_groups(runs: unstale.Runs) -> None:
    other = unstale.simulate(line.central, **{**IN_ROUNDS, "policy": "dynsgd"})
    (legend,) = unstale.compare([runs, other], ["one", "other"]).plot().legends
    assert [text.get_text() for text in legend.get_texts()] == ["one (n = 3)", "other"]


def test_pages_are_those_of_the_command(runs: unstale.Runs, tmp_path: Path) -> None:
    one, many = runs[0].report(tmp_path / "one.html"), runs.report(tmp_path / "many.html")
    assert "fedavg, seed 5" in one.read_text() and "Staleness over versions" in one.read_text()
    assert "3 runs" in many.read_text()
    with pytest.raises(unstale.UserError, match="cannot write"):
        runs.report(tmp_path / "nowhere" / "page.html")


def test_metrics_named_as_columns_have_columns_of_their_own() -> None:
    names = ("version", "split", "updates", "overflowed", "evaluate_s", "num_examples", "client_id", "metric_version")

    def measure(module: Any, data: Any = None) -> unstale.Measured:
        return unstale.Measured(num_examples=1, metrics=dict.fromkeys(names, 0.5))

    for fields in ({"evaluate": measure}, {"evaluate_centrally": measure}):
        app = unstale.App(model=line.Line, data=line.own, train=line.train, metric="version", **fields)
        run = unstale.simulate(app, **IN_ROUNDS, evaluate_every=1)
        assert run.metrics == dict.fromkeys(names, 0.5)
        assert (run.evaluations[[f"metric_{name}" for name in names]] == 0.5).all(axis=None)
        assert run.evaluations.version.tolist()[-1] >= 3
        assert [axes.get_ylabel()[:7] for axes in run.plot().figure.axes][:1] == ["version"]


def test_a_run_without_updates_has_a_row() -> None:
    def train(module: Any, data: Any, task: unstale.Task) -> unstale.Trained:
        raise unstale.Decline("battery")

    run = unstale.simulate(unstale.App(model=line.Line, data=line.own, train=train), **IN_ROUNDS)
    assert unstale.compare([run]).frame.runs.tolist() == [1]
