"""The example of a segmentation of private pictures, in simulation, over sockets, and in one place."""

from pathlib import Path

import numpy as np
import pytest

from support import examples

NAME = "segmentation"
SETTINGS = ["--config", "unstale.yaml"]
DATA = ["--data", "shapes:pictures", "--data.path"]
BACKGROUND = 0.25  # above the mean IoU of a model that finds background only


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One with all pictures."""
    folder = examples.copied(NAME, tmp_path_factory.mktemp("one") / NAME)
    examples.run_script(folder, "draw.py", "data")
    return folder


def test_the_code_of_the_user_is_short() -> None:
    assert examples.lines_of_code(NAME, "shapes.py") == examples.counted(NAME) <= examples.CODE_MAX


def test_a_shape_is_found_by_no_threshold_alone(machine: Path) -> None:
    shares = []
    for client in range(4):
        with np.load(machine / f"data/{client}.npz") as arrays:
            classes = arrays["test_y"]
        assert classes.shape == (16, 16, 16) and set(np.unique(classes)) <= {0, 1, 2, 3}
        shares.append(np.mean(classes == 0))
    assert max(shares) / 4 < BACKGROUND


@pytest.mark.slow
def test_a_simulation_learns_about_as_well_as_one_place(machine: Path) -> None:
    run = examples.simulated(machine, *SETTINGS, *DATA, "data", "--partition", "column", "--rounds", "31")
    federated = run["client_metrics"]["mean_iou"]["mean"]
    in_one_place = examples.central(machine, "mean_iou", epochs=20)
    assert min(federated, in_one_place) > 2 * BACKGROUND
    assert federated < in_one_place + 0.1


@pytest.mark.slow
@pytest.mark.network
def test_machines_with_one_file_each_learn_over_sockets(machine: Path, tmp_path: Path) -> None:
    server = examples.copied(NAME, tmp_path / "server")
    clients = [
        (
            examples.copied(NAME, tmp_path / str(client), machine / f"data/{client}.npz"),
            [*SETTINGS, "--first", str(client), *DATA, f"data/{client}.npz"],
        )
        for client in range(2)
    ]
    changes = ["--clients", "2", "--rounds", "12"]
    run = examples.over_sockets((server, [*SETTINGS, *changes]), clients)
    assert run["updates"] == {"accepted": 24, "duplicate": 0, "rejected": 0}
    assert run["client_metrics"]["mean_iou"]["mean"] > BACKGROUND
    assert run["metrics"] == {}  # the server has no pictures
