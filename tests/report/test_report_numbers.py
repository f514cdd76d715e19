"""The tables of a report: computed by hand, and equal to the database."""

import csv
import io
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from math import inf, isnan, sqrt
from pathlib import Path
from typing import Any

import pytest

from report.made import Rows, compensated, curve, measured, round_of, rows, run, small_run
from support.journal import accepted, task
from support.recorded import simulated
from unstale.errors import UserError
from unstale.journal.rows import Batch
from unstale.report.content import Report
from unstale.report.files import as_csv
from unstale.report.make import report

T_1 = 12.706204736  # Student's t, 1 degree of freedom, 97.5 %


def sentences(of: Report) -> str:
    return "\n".join([*of.notes, *(sentence for section in of.sections for sentence in section.sentences)])


def repeated(path: Path, *last: float, **changes: Any) -> list[Path]:
    """Runs of seeds 0, 1, ... that end with these accuracies, measured at versions 0 and 1."""
    return [
        run(path / f"{changes.get('policy', {}).get('name', 'run')}{seed}", curve(0.1, accuracy), seed=seed, **changes)
        for seed, accuracy in enumerate(last)
    ]


# --------------------------------------------------------------------------------------------------------- several runs


def test_a_group_has_the_mean_of_its_runs_and_their_standard_deviation(tmp_path: Path) -> None:
    (row,) = rows(report(repeated(tmp_path, 0.5, 0.7, 0.9)), "groups")
    assert (row["runs"], row["last_measured_version"]) == (3, "1")
    assert row["accuracy_mean_ratio"] == pytest.approx(0.7)
    assert row["accuracy_std_ratio"] == pytest.approx(0.2)
    half = 0.95 / sqrt(2 * 0.975 * 0.025) * 0.2 / sqrt(3)
    assert row["accuracy_high_ratio"] - row["accuracy_mean_ratio"] == pytest.approx(half)


def test_a_target_is_reached_at_the_first_version_measured_to_have_it(tmp_path: Path) -> None:
    tasks = [task(1)]
    first = Batch(
        tasks=tasks,
        updates=[accepted(1, 1), accepted(2, 2), accepted(3, 3)],
        rounds=[round_of(1, (1, 0, 1.0), (2, 0, 1.0)), round_of(2, (3, 0, 1.0))],
        evaluations=[measured(0, 0.1), measured(1, 0.8), measured(2, 0.7)],
    )
    never = Batch(tasks=tasks, evaluations=[measured(0, 0.1)])
    paths = [run(tmp_path / "a", first), run(tmp_path / "b", never, seed=1)]
    (row,) = rows(report(paths, targets=[0.75]), "targets")
    assert (row["runs"], row["reached"]) == (2, 1)
    assert (row["rounds_mean"], row["elapsed_mean_s"], row["updates_mean"]) == (1, 10.0, 2)
    assert isnan(row["rounds_std"])


def test_runs_of_the_same_seed_are_compared_in_pairs(tmp_path: Path) -> None:
    paths = [
        *repeated(tmp_path, 0.5, 0.6, 0.7, policy={"name": "fedbuff"}),
        *repeated(tmp_path, 0.6, 0.8, policy={"name": "dynsgd"}),
    ]
    (row,) = rows(report(paths), "pairs")
    assert (row["group"], row["against"], row["seeds"], row["version"]) == ("dynsgd", "fedbuff", 2, 1)
    # Differences 0.1 and 0.2: mean 0.15, half the interval t * |0.1 - 0.2| / 2.
    assert row["accuracy_difference_mean_ratio"] == pytest.approx(0.15)
    assert row["accuracy_difference_low_ratio"] == pytest.approx(0.15 - T_1 * 0.05)
    assert row["more_accurate"] == 2


def test_pairs_are_compared_at_a_version_that_all_measured(tmp_path: Path) -> None:
    one = run(tmp_path / "one", curve(0.1, 0.5, 0.9), policy={"name": "fedbuff"})
    other = run(tmp_path / "other", curve(0.1, 0.4), policy={"name": "dynsgd"})
    (row,) = rows(report([one, other]), "pairs")
    assert (row["version"], row["accuracy_difference_mean_ratio"]) == (1, pytest.approx(-0.1))


def test_a_repeated_seed_is_left_out_of_pairs_with_a_sentence(tmp_path: Path) -> None:
    paths = [
        run(tmp_path / "a", curve(0.5), policy={"name": "fedbuff"}),
        run(tmp_path / "b", curve(0.6), policy={"name": "fedbuff"}),
        run(tmp_path / "c", curve(0.7), policy={"name": "dynsgd"}),
    ]
    of = report(paths)
    assert "pairs" not in [table.name for table in of.tables]
    assert "dynsgd is not compared with fedbuff by seed 0: a group has several runs of it" in sentences(of)


def test_evaluations_that_some_runs_lack_are_left_out_with_a_sentence(tmp_path: Path) -> None:
    paths = [run(tmp_path / "a", curve(0.1, 0.2, 0.3)), run(tmp_path / "b", curve(0.1, 0.4, every=2), seed=1)]
    of = report(paths)
    assert [row["version"] for row in rows(of, "curves")] == [0, 2]
    (picture,) = (picture for picture in of.pictures if picture.name == "accuracy_over_versions")
    assert "Left out: 1 evaluation of versions that not every run of the group measured" in picture.caption


def test_non_finite_values_are_counted_in_the_caption(tmp_path: Path) -> None:
    paths = [
        run(tmp_path / str(seed), curve(0.1, 0.2, 0.3, loss=loss), seed=seed) for seed, loss in enumerate((1.0, inf))
    ]
    of = report(paths)
    captions = {picture.name: picture.caption for picture in of.pictures}
    assert "Gaps: 3 evaluations without a finite value" in captions["loss_over_versions"]
    assert "Gaps" not in captions["accuracy_over_versions"]
    (row,) = rows(of, "groups")
    assert row["accuracy_mean_ratio"] == pytest.approx(0.3) and row["loss_mean_nats"] == inf


# ---------------------------------------------------------------------------------------------------------------- notes


def test_notes_warn_of_incomplete_and_incomparable_runs(tmp_path: Path) -> None:
    paths = [
        run(tmp_path / "short", small_run(), rounds=9, ended=False, run_id="r"),
        run(tmp_path / "twin", small_run(), rounds=9, seed=1, run_id="r"),
        run(tmp_path / "played", Batch(), rounds=9, data={"name": "mnist"}),
    ]
    noted = report(paths).notes
    assert noted[0].startswith("Broken off: short (version 2 of 9); its server died")
    for words in (
        "Simulated, with virtual times that are not comparable with those of the others: played",
        "Without an evaluation on the test set, so without accuracy and loss: played",
        "The runs use different data sets, digits and mnist",
        "short and twin made bit-identical versions: they are the same run, counted twice",
    ):
        assert any(words in note for note in noted), words


def test_pooled_runs_are_noted(tmp_path: Path) -> None:
    paths = [run(tmp_path / "a", curve(0.1), rounds=2), run(tmp_path / "b", curve(0.2), rounds=3)]
    assert "fedbuff pools runs that differ in more than their seed: rounds." in report(paths, by=["policy"]).notes


@pytest.mark.parametrize("target", [0.0, 1.5, -1.0, float("nan")])
def test_a_target_outside_the_accuracy_range_is_refused(target: float, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected an accuracy > 0 and <= 1"):
        report([run(tmp_path / "run", curve(0.5))], targets=[target])


# -------------------------------------------------------------------------------------------------------------- one run


def test_clients_have_their_updates_and_their_share_of_the_weight(tmp_path: Path) -> None:
    of = report([run(tmp_path / "run", small_run())])
    by_client = {row["client_id"]: row for row in rows(of, "clients")}
    # Shares of round 1: 3/4 and 1/4, of round 2: a half each; client 0 has 3/4 + 1/2 of 2.
    assert [by_client[client]["weight_share_ratio"] for client in range(4)] == [0.625, 0.125, 0.25, 0]
    assert [by_client[client]["aggregated"] for client in range(4)] == [2, 1, 1, 0]
    assert [by_client[client]["tasks"] for client in range(4)] == [3, 2, 2, 1]
    assert by_client[0]["staleness_mean_rounds"] == 0.5
    (fair,) = rows(of, "fairness")
    assert fair["updates_jain"] == pytest.approx(16 / (4 * 6))
    assert (fair["without_update_mean"], fair["largest_share_ratio"], fair["even_share_ratio"]) == (1, 0.625, 0.25)


def test_weights_are_multiples_of_the_even_share(tmp_path: Path) -> None:
    by_staleness = {row["staleness_rounds"]: row for row in rows(report([run(tmp_path / "r", small_run())]), "weights")}
    # Staleness 0: shares 3/4 and 1/4 of two updates, 1.5 and 0.5 times an even one. Weights 0.75 and -0.25.
    assert (by_staleness[0]["relative_weight_mean"], by_staleness[0]["weight_mean"]) == (1.0, 0.25)
    assert by_staleness[3]["relative_weight_mean"] == 1.0


def test_staleness_is_summarized(tmp_path: Path) -> None:
    (row,) = rows(report([run(tmp_path / "run", small_run())]), "staleness")
    assert (row["updates"], row["staleness_mean_rounds"], row["staleness_median_rounds"]) == (4, 1.0, 0.5)
    assert (row["staleness_p95_rounds"], row["staleness_max_rounds"], row["fresh_ratio"]) == (3, 3, 0.5)


def test_phases_add_up_to_the_time_of_rounds(tmp_path: Path) -> None:
    by_phase = {row["phase"]: row for row in rows(report([run(tmp_path / "run", small_run())]), "phases")}
    # Twice 2 + 0.25 + 0.75 s, and two evaluations of 0.25 s: 6.5 s.
    assert {phase: row["total_s"] for phase, row in by_phase.items()} == {
        "wait": 4.0,
        "compensate": 0.5,
        "aggregate": 1.5,
        "evaluate": 0.5,
    }
    assert by_phase["wait"]["share_ratio"] == pytest.approx(4 / 6.5)
    assert by_phase["evaluate"]["mean_s"] == 0.25


def test_rejections_are_counted_by_reason(tmp_path: Path) -> None:
    found = rows(report([run(tmp_path / "run", small_run())]), "rejections")
    assert [(row["reason"], row["updates"]) for row in found] == [("expired-task", 1), ("non-finite", 1)]
    assert found[0]["received_ratio"] == pytest.approx(1 / 7)


def test_errors_of_compensation_are_averaged_by_method(tmp_path: Path) -> None:
    of = report([run(tmp_path / "run", compensated(), compensator={"name": "first-order"})])
    errors = {row["method"]: row for row in rows(of, "compensation_errors")}
    assert (errors["none"]["l1_mean"], errors["none"]["cosine_mean"]) == (3.0, 0.375)
    assert (errors["none"]["estimates"], errors["none"]["staleness_mean_rounds"]) == (2, 3.0)
    assert errors["first-order"]["l1_mean"] == 1.0
    assert [(row["method"], row["updates"]) for row in rows(of, "compensation_methods")] == [
        ("none", 2),
        ("first-order", 2),
    ]
    assert [(row["reason"], row["updates"]) for row in rows(of, "compensation_fallbacks")] == [("no-base", 2)]
    assert {"compensation_error_l1", "compensation_error_cosine"} <= {picture.name for picture in of.pictures}


def test_the_unchanged_update_comes_first_among_the_methods(tmp_path: Path) -> None:
    of = report([run(tmp_path / "run", compensated(), compensator={"name": "first-order"})])
    assert [row["method"] for row in rows(of, "compensation_errors")] == ["none", "first-order"]
    (picture,) = (picture for picture in of.pictures if picture.name == "compensation_error_l1")
    assert list(picture.keys) == ["unchanged stale update (E2)", "first-order"]


def test_a_run_without_a_compensator_has_no_compensation_section(tmp_path: Path) -> None:
    of = report([run(tmp_path / "run", small_run())])
    assert "compensation" not in [section.name for section in of.sections]


def test_differing_settings_are_shown_side_by_side(tmp_path: Path) -> None:
    paths = [
        run(tmp_path / "a", curve(0.1), policy={"name": "fedasync", "settings": {"alpha": 0.5}}),
        run(tmp_path / "b", curve(0.1), policy={"name": "dynsgd"}),
    ]
    found = {row["key"]: (row["group_1"], row["group_2"]) for row in rows(report(paths), "differences")}
    assert found == {"policy.name": ("fedasync", "dynsgd"), "policy.settings.alpha": ("0.5", "–")}


# ------------------------------------------------------------------------------------------------- against the database


def read_csv(of: Report, name: str) -> Rows:
    (table,) = (table for table in of.tables if table.name == name)
    return list(csv.DictReader(io.StringIO(as_csv(table))))


def asked(path: Path, query: str) -> Iterator[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"file:{path / 'run.db'}?mode=ro", uri=True)) as database:
        yield from database.execute(query).fetchall()


def test_csv_files_are_equal_to_the_database(tmp_path: Path) -> None:
    path = tmp_path / "run"
    simulated(path, scenario={"name": "lognormal"}, compensator={"name": "first-order"})
    of = report([path])
    ((started_s,),) = asked(path, "SELECT min(at_s) FROM tasks")
    for name, query, columns in (
        (
            "evaluations",
            f"SELECT version, at_s - {started_s!r}, accuracy, loss FROM evaluations ORDER BY version",
            ("version", "elapsed_s", "accuracy_ratio", "loss_nats"),
        ),
        (
            "updates",
            "SELECT client_id, coalesce(round, ''), coalesce(staleness, ''), coalesce(weight, ''), loss, num_examples "
            "FROM updates ORDER BY seq",
            ("client_id", "version", "staleness_rounds", "weight", "loss_nats", "num_examples"),
        ),
        (
            "rounds",
            "SELECT version, wait_s, compensate_s, aggregate_s, learning_rate, digest FROM rounds ORDER BY version",
            ("version", "wait_s", "compensate_s", "aggregate_s", "learning_rate", "digest"),
        ),
        (
            "clients",
            "SELECT client_id, tasks, received, aggregated, rejected FROM clients ORDER BY aggregated DESC, client_id",
            ("client_id", "tasks", "received", "aggregated", "rejected"),
        ),
        (
            "conservation",
            "SELECT received, aggregated, pending, rejected FROM conservation",
            ("received", "aggregated", "pending", "rejected"),
        ),
    ):
        stored = [tuple(str(value) for value in row) for row in asked(path, query)]
        assert [tuple(row[column] for column in columns) for row in read_csv(of, name)] == stored, name


def test_csv_leaves_missing_numbers_empty_and_quotes_special_characters(tmp_path: Path) -> None:
    path = run(tmp_path / 'a,"b', Batch())
    (row,) = read_csv(report([path]), "runs")
    assert (row["run"], row["accuracy_ratio"], row["digest"]) == ('a,"b', "", "")
