"""The notebook of the example, executed from top to bottom as Jupyter does."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

nbclient = pytest.importorskip("nbclient")  # of the extra `test`, with ipykernel
nbformat = pytest.importorskip("nbformat")

EXAMPLE = Path(__file__).parents[2] / "examples/notebook"
NOTEBOOK = "stragglers.ipynb"


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """The notebook with its outputs, and its folder."""
    folder = tmp_path_factory.mktemp("notebook") / "notebook"
    shutil.copytree(EXAMPLE, folder)
    notebook = nbformat.read(folder / NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    return notebook, folder


def outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def test_the_notebook_is_stored_without_outputs() -> None:
    notebook = nbformat.read(EXAMPLE / NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert outputs(notebook) == []


def test_the_notebook_runs_and_shows_tables_and_pictures(executed: tuple[Any, Path]) -> None:
    notebook, folder = executed
    shown = [output.data for output in outputs(notebook) if "data" in output]
    assert sum("image/png" in data for data in shown) == 3
    tables = [data["text/html"] for data in shown if "<table" in data.get("text/html", "")]
    assert len(tables) == 3 and all(policy in tables[-1] for policy in ("fedavg", "fedbuff", "fedhist"))
    assert (folder / "comparison.html").stat().st_size > 50_000


def test_each_run_has_one_bar_which_ends_full(executed: tuple[Any, Path]) -> None:
    notebook, _ = executed
    shown = [output.data.get("text/plain", "") for output in outputs(notebook) if "data" in output]
    bars = [
        re.fullmatch(r"round 40/40  (run \d of 9  )?(accuracy|mae) 0\.\d{4}  .* s of virtual time", text)
        for text in shown
    ]
    assert sum(bar is not None for bar in bars) == 1 + 9 + 1
    assert not [output for output in outputs(notebook) if output.output_type == "stream"]
