"""Results as text: export, and import into another store."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from helpers import stand_in
from unstale.errors import UserError
from unstale_papers import published
from unstale_papers.jobs import File, Job, Place, jobs
from unstale_papers.presets.registry import make
from unstale_papers.record import Record
from unstale_papers.runners import MEASUREMENTS
from unstale_papers.scale import Scale
from unstale_papers.store import Result, Store

RESULTS = Path(__file__).parents[1] / "results"


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Job]:
    """Jobs of a preset."""
    monkeypatch.setitem(MEASUREMENTS, stand_in.NAME, stand_in.MODULE)
    of = stand_in.preset(tmp_path)
    return jobs(of, of.cells, seeds=[0], scale=Scale(), place=Place(cache="/data"))


def result(accuracy: float, digest: str = "a") -> Result:
    record = Record(accuracy_E=[accuracy], training_loss_R=[float("nan"), float("inf")], model_digest=digest)
    return Result(record=record.to_json(), seconds=1.5, machine="one core", versions="unstale 1")


def test_exported_results_are_imported_unchanged(tmp_path: Path, three: list[Job]) -> None:
    file = tmp_path / "results.jsonl"
    with Store.open(tmp_path / "here") as here, Store.open(tmp_path / "there") as there:
        here.keep(three[0], result(0.25))
        here.keep(three[2], result(0.5))
        there.take(one for one in here.everything() if one.digest == three[2].digest)
        there.fail(three[0], "it failed there")
        assert published.write(here, file) == 2
        assert published.read(there, [file, file]) == (1, 1)
        assert [asdict(one) for one in there.everything()] == [asdict(one) for one in here.everything()]
        assert there.failures(three) == {}
        assert published.read(there, [file]) == (0, 2)
        again = tmp_path / "again.jsonl"
        published.write(there, again)
    assert again.read_bytes() == file.read_bytes()
    assert sorted(path.name for path in tmp_path.glob("*.jsonl*")) == ["again.jsonl", "results.jsonl"]


def test_an_export_can_be_limited_to_some_presets(tmp_path: Path, three: list[Job]) -> None:
    file = tmp_path / "results.jsonl"
    with Store.open(tmp_path) as store:
        store.keep(three[0], result(0.25))
        assert published.write(store, file, ["fh-t2"]) == 0
        assert file.read_text() == ""
        assert published.write(store, file, [three[0].preset]) == 1
    assert json.loads(file.read_text())["name"] == three[0].name


def _cut(line: str) -> str:
    return line[: len(line) // 2]


def _moved(line: str) -> str:
    fields = json.loads(line)
    fields["configuration"]["settings"] = {}
    return json.dumps(fields)


def _bent(line: str) -> str:
    fields = json.loads(line)
    fields["record"]["accuracy_E"] = "much"
    return json.dumps(fields)


def _nameless(line: str) -> str:
    return json.dumps({key: value for key, value in json.loads(line).items() if key != "name"})


def _listed(line: str) -> str:
    return json.dumps([line])


@pytest.mark.parametrize("spoil", [_cut, _moved, _bent, _nameless, _listed])
def test_a_damaged_line_is_reported_and_nothing_is_imported(
    spoil: Callable[[str], str], tmp_path: Path, three: list[Job]
) -> None:
    file = tmp_path / "results.jsonl"
    with Store.open(tmp_path / "here") as here, Store.open(tmp_path / "there") as there:
        here.keep(three[0], result(0.25))
        here.keep(three[1], result(0.25))
        published.write(here, file)
        first, second = file.read_text().splitlines()
        file.write_text(f"{first}\n{spoil(second)}\n")
        with pytest.raises(UserError, match=f"^line 2 of {file} is not a result as "):
            published.read(there, [file])
        assert list(there.everything()) == []


def test_conflicting_results_in_two_files_are_reported(tmp_path: Path, three: list[Job]) -> None:
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for file in files:
        with Store.open(tmp_path / file.stem) as store:
            store.keep(three[0], result(0.25, digest=file.stem))
            published.write(store, file)
    with Store.open(tmp_path / "there") as there:
        with pytest.raises(UserError, match="is another one than a file before has, of the same configuration"):
            published.read(there, files)
        assert list(there.everything()) == []
        assert published.read(there, [files[0], files[0]]) == (1, 0)


def test_a_result_that_conflicts_with_the_store_is_reported(tmp_path: Path, three: list[Job]) -> None:
    file = tmp_path / "results.jsonl"
    with Store.open(tmp_path / "here") as here, Store.open(tmp_path / "there") as there:
        here.keep(three[0], result(0.25))
        here.keep(three[1], result(0.25))
        there.keep(three[0], result(0.26, digest="b"))
        published.write(here, file)
        with pytest.raises(UserError, match="is another one than the store has, of the same configuration"):
            published.read(there, [file])
        assert [one.digest for one in there.everything()] == [three[0].digest]


@pytest.mark.parametrize("name", ["missing.jsonl", "binary.jsonl"])
def test_a_missing_file_is_reported(name: str, tmp_path: Path) -> None:
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    with Store.open(tmp_path / "store") as store, pytest.raises(UserError, match=name):
        published.read(store, [tmp_path / name])


def test_an_unwritable_folder_is_reported(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store, pytest.raises(UserError, match=r"^cannot write "):
        published.write(store, tmp_path / "missing" / "results.jsonl")


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.jsonl")), ids=lambda path: path.name)
def test_the_stored_results_of_the_project_can_be_imported(path: Path, tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        new, _ = published.read(store, [path])
        assert new == len(path.read_text(encoding="utf-8").splitlines())
        (preset,) = {one.name.partition(":")[0] for one in store.everything()}
    assert path.stem.removeprefix(preset) in ("", "-mnist"), "a file is named after its preset, and its data set"


SCALES = {
    "ar-f2": Scale(rounds=0.25),
    "ar-t3": Scale(rounds=0.25),
    "fh-controls": Scale(rounds=0.08),
    "fh-f4": Scale(rounds=0.08),
    "fh-t1": Scale(rounds=0.08),
    "gi-f1": Scale(rounds=0.25, data=0.2),
    "gi-f11": Scale(rounds=0.25, data=0.2, iterations=0.005),
    "gi-f14": Scale(rounds=0.25, data=0.2, iterations=0.005),
    "gi-f2": Scale(data=0.2),
    "gi-f4": Scale(iterations=0.1),
    "gi-t1": Scale(iterations=0.1),
    "gi-t3": Scale(rounds=0.25, data=0.2, iterations=0.005),
    "wk-f2": Scale(rounds=0.5),
}
"""The scales of papers/results/README.md; other presets are at full size."""
OF_CELLS = {
    "ar-f1": 23,
    "ar-f2": 15,
    "ar-f2-mnist": 42,
    "ar-t3": 11,
    "fh-controls": 54,
    "fh-f4": 15,
    "fh-t1": 12,
    "fh-t2": 34,
    "gi-controls": 42,
    "gi-f1": 3,
    "gi-f11": 2,
    "gi-f14": 9,
    "gi-f2": 2,
    "gi-f4": 3,
    "gi-t1": 4,
    "gi-t3": 16,
    "th-fedar": 48,
    "th-fedasync": 18,
    "th-fedbuff": 12,
    "th-fedhist": 60,
    "th-wkafl": 18,
    "wk-f2": 4,
    "wk-t2": 48,
    "wk-t3": 34,
}
"""Number of results of preset cells; the others belong to searches."""


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.jsonl")), ids=lambda path: path.name)
def test_each_result_of_a_cell_is_found_by_the_digest_of_its_job(path: Path) -> None:
    every = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    of_cells = [one for one in every if "data.validation" not in one["configuration"]["settings"]]
    assert len(of_cells) == OF_CELLS[path.stem]
    for one in of_cells:
        preset_name, _, rest = one["name"].partition(": ")
        cell_name, _, seed = rest.rpartition(", seed ")
        preset = make(preset_name)
        (cell,) = (cell for cell in preset.cells if cell.name == cell_name)
        computed = one["configuration"]["settings"]
        data = cell.settings.data
        names = {"data.path": data.name, "data.variant.path": data.variant.name}
        (job,) = jobs(
            preset,
            [cell],
            seeds=[int(seed)],
            scale=SCALES.get(path.stem, Scale()),
            place=Place(
                cache="/data",
                device=computed["device"],
                backend=computed.get("simulation.backend", "auto"),
                files={  # problems with a known optimum have none
                    name: File(path=f"/{name}.npz", sha256=computed[key], size=1, modified_ns=1)
                    for key, name in names.items()
                    if name is not None and key in computed
                },
            ),
        )
        assert job.digest == one["digest"], one["name"]
