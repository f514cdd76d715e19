"""The example of a regression on private tables, in simulation, over sockets, and in one place."""

from pathlib import Path

import pytest

from support import examples

NAME = "regression"
APP = ["--app", "diabetes:app", "--lr", "0.01"]
CONSTANT = 58.7  # error of the mean of the targets


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One with all tables."""
    folder = examples.copied(NAME, tmp_path_factory.mktemp("one") / NAME)
    examples.run_script(folder, "tables.py", "data")
    return folder


def test_the_tables_divide_all_patients(machine: Path) -> None:
    rows = [line for client in range(4) for line in (machine / f"data/{client}.csv").read_text().splitlines()]
    assert len(rows) == len(set(rows)) == 442


def test_the_code_of_the_user_is_short() -> None:
    assert examples.lines_of_code(NAME, "diabetes.py") == examples.counted(NAME) <= examples.CODE_MAX


def test_a_simulation_learns_as_well_as_one_place(machine: Path) -> None:
    run = examples.simulated(machine, *APP, "--clients", "4", "--rounds", "50")
    federated = run["client_metrics"]["mae"]["mean"]
    in_one_place = examples.central(machine, "error")
    assert abs(federated - in_one_place) < 2
    assert max(federated, in_one_place) < 0.75 * CONSTANT


@pytest.mark.slow
@pytest.mark.network
def test_machines_with_one_table_each_learn_over_sockets(machine: Path, tmp_path: Path) -> None:
    server = examples.copied(NAME, tmp_path / "server")
    clients = [
        (
            examples.copied(NAME, tmp_path / str(client), machine / f"data/{client}.csv"),
            ["--app", "diabetes:app", "--first", str(client)],
        )
        for client in range(2)
    ]
    run = examples.over_sockets((server, [*APP, "--clients", "2", "--rounds", "30", "--trigger", "sync"]), clients)
    assert run["updates"] == {"accepted": 60, "duplicate": 0, "rejected": 0}
    assert run["client_metrics"]["mae"]["mean"] < 0.85 * CONSTANT
    assert run["metrics"] == {}  # the server has no data
