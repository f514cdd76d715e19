"""Jobs: the settings that enter their digest, those that do not, and their final settings."""

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from helpers import stand_in
from unstale.config.settings import Settings
from unstale.errors import UserError
from unstale_papers import jobs as made
from unstale_papers.jobs import File, Job, Place, given, jobs, values
from unstale_papers.preset import Cell
from unstale_papers.presets.registry import PRESETS
from unstale_papers.runners import MEASUREMENTS
from unstale_papers.scale import Scale

HERE = Place(cache="/data")
WHERE = Path("/nowhere")


@pytest.fixture(autouse=True)
def _with_the_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MEASUREMENTS, stand_in.NAME, stand_in.MODULE)


def job(cell: Cell | None = None, *, seed: int = 0, place: Place = HERE, scale: Scale | None = None) -> Job:
    """The job of one cell."""
    of = stand_in.preset(WHERE)
    chosen = of.cells[0] if cell is None else cell
    (only,) = jobs(of, [chosen], seeds=[seed], scale=scale or Scale(), place=place)
    return only


def cell(**settings: Any) -> Cell:
    """A cell that is measured as a run."""
    return Cell(labels={"method": "alpha"}, settings=Settings(**settings))


def test_the_job_digest_is_the_digest_of_its_configuration() -> None:
    one = job()
    assert one.digest == sha256(one.configuration.encode()).hexdigest()
    configuration = json.loads(one.configuration)
    assert configuration == {
        "format": made.RECORD_FORMAT,
        "measurement": "stand-in",
        "options": {"folder": "/nowhere", "method": "alpha"},
        "scenario": None,
        "settings": {
            "clients": 30, "rounds": 7, "device": "cpu", "policy.name": "fedavg", "simulation.backend": "loop",
        },
    }  # fmt: skip


def test_the_same_cell_of_two_presets_is_one_job() -> None:
    of = stand_in.preset(WHERE)
    other = replace(of, name="other", cells=of.cells[:1])
    both = [jobs(one, one.cells[:1], seeds=[0], scale=Scale(), place=HERE)[0].digest for one in (of, other)]
    assert both[0] == both[1]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (cell(), cell(rounds=201)),
        (cell(), cell(evaluate_every=11)),
        (cell(), cell(policy={"name": "dynsgd", "settings": {"normalise": False}})),
        (cell(), cell(data={"name": "mnist"})),
        (cell(), replace(cell(), options={"training_loss_every": 2})),
        (cell(), replace(cell(), measurement="Shapley")),
        (cell(), replace(cell(), scenario="groups: []")),
        (replace(cell(), scenario="groups: []"), replace(cell(), scenario="groups: [ ]")),
    ],
)
def test_settings_that_affect_results_change_the_digest(one: Cell, other: Cell) -> None:
    assert job(one).digest != job(other).digest


@pytest.mark.parametrize(
    "other",
    [
        cell(rounds=200),  # the default
        cell(data={"cache": "/elsewhere", "download": True}),
        cell(run={"directory": "/elsewhere"}, server={"address": "tcp://127.0.0.1:1"}, threads=1),
        cell(seed=7),
        cell(save_model="/elsewhere/model.safetensors"),
        replace(cell(), labels={"method": "beta"}),
    ],
)
def test_settings_that_do_not_affect_results_keep_the_digest(other: Cell) -> None:
    assert job(other).digest == job(cell()).digest


def test_seed_and_device_kind_change_the_digest() -> None:
    assert job(seed=1).digest != job(seed=0).digest
    on_gpus = [job(place=Place(cache="/data", device=device)).digest for device in ("cuda", "cuda:1")]
    assert on_gpus[0] == on_gpus[1] != job().digest


def test_a_substituted_data_file_enters_the_digest_by_its_bytes() -> None:
    def with_file(path: str, sha: str) -> Job:
        files = {"mnist": File(path=path, sha256=sha, size=3, modified_ns=len(path) + int(sha))}
        return job(
            cell(data={"name": "mnist", "variant": {"name": "svhn", "rate": 0.5}}),
            place=Place(cache="/data", files=files),
        )

    one = with_file("/a.npz", "11")
    assert (one.settings.data.name, one.settings.data.path) == ("npz", "/a.npz")
    assert one.settings.data.variant.name == "svhn"
    assert [(file.path, file.sha256) for file in one.files] == [("/a.npz", "11")]
    assert one.digest == with_file("/b.npz", "11").digest != with_file("/a.npz", "22").digest
    assert "/a.npz" not in one.configuration


def test_a_file_may_replace_a_later_data_set() -> None:
    files = {"svhn": File(path="/s.npz", sha256="33", size=3, modified_ns=1)}
    variant = job(
        cell(data={"variant": {"name": "svhn", "rate": 0.5}}), place=Place(cache="/data", files=files)
    ).settings.data.variant
    assert (variant.name, variant.path, variant.rate) == ("npz", "/s.npz", 0.5)


def test_a_job_runs_with_its_seed_device_data_and_one_thread() -> None:
    settings = job(cell(threads=4, run={"durability": "full"}), seed=3).settings
    assert (settings.seed, settings.device, settings.data.cache) == (3, "cpu", "/data")
    assert (settings.threads, settings.run.durability, settings.simulation.backend) == (1, "off", "loop")


@pytest.mark.parametrize(
    ("device", "backend", "expected"),
    [("cpu", "auto", "loop"), ("cpu", "vmap", "vmap"), ("cuda", "auto", "auto"), ("cuda:1", "loop", "loop")],
)
def test_auto_is_the_loop_on_the_cpu_and_left_to_the_job_on_a_gpu(device: str, backend: str, expected: str) -> None:
    made = job(cell(), place=Place(cache="/data", device=device, backend=backend))
    assert made.settings.simulation.backend == expected
    assert json.loads(made.configuration)["settings"].get("simulation.backend", "auto") == expected


def test_the_first_seed_of_all_cells_comes_before_the_second() -> None:
    of = stand_in.preset(WHERE)
    order = [(one.cell, one.seed) for one in jobs(of, of.cells[:2], seeds=[0, 1], scale=Scale(), place=HERE)]
    assert order == [("method=alpha", 0), ("method=beta", 0), ("method=alpha", 1), ("method=beta", 1)]


def test_a_scaled_cell_is_another_job() -> None:
    small = job(cell(rounds=100, clients=40), scale=Scale(rounds=0.1))
    assert small.settings.rounds == 10
    assert small.digest != job(cell(rounds=100, clients=40)).digest


def test_an_order_restores_the_settings() -> None:
    one = job(cell(policy={"name": "fedbuff", "settings": {"alpha": 0.5}}, training={"steps": None, "epochs": 2}))
    order = json.loads(json.dumps(one.order))
    assert Settings(**order["settings"]) == one.settings
    assert order["module"] == MEASUREMENTS["run"]


def test_a_job_lists_its_given_settings_by_key() -> None:
    settings = Settings(training={"steps": None}, policy={"settings": {"alpha": {"a": 1}}}, rounds=200)
    assert values(settings) == {"training.steps": None, "policy.settings": {"alpha": {"a": 1}}}
    assert given(settings) == {"training": {"steps": None}, "policy": {"settings": {"alpha": {"a": 1}}}}


def test_an_unknown_measurement_is_refused() -> None:
    with pytest.raises(UserError, match=r"^unknown measurement 'stand-on'; did you mean 'stand-in'"):
        job(replace(stand_in.preset(WHERE).cells[0], measurement="stand-on"))


@pytest.mark.parametrize("name", list(PRESETS))
def test_jobs_of_every_preset_survive_serialization_and_are_distinct(name: str) -> None:
    preset = PRESETS[name]()
    for scale in (Scale(), Scale.of(0.01)):
        planned = jobs(preset, preset.cells, seeds=[0, 1], scale=scale, place=HERE)
        for one in planned:
            order = json.loads(json.dumps(one.order))
            assert Settings(**order["settings"]) == one.settings
            assert order["options"] == json.loads(json.dumps(dict(one.options)))
        if scale.is_full:
            assert len({one.digest for one in planned}) == 2 * len(preset.cells)


def test_a_job_that_is_not_done_is_reported_from_another_device() -> None:
    of = stand_in.preset(WHERE)

    def at(place: Place) -> list[Job]:
        return jobs(of, of.cells, seeds=[0, 1], scale=Scale(), place=place)

    here, vmap, cuda = at(HERE), at(replace(HERE, backend="vmap")), at(replace(HERE, device="cuda:0"))
    done = {here[0].digest, cuda[0].digest, cuda[1].digest, vmap[2].digest, cuda[2].digest}
    found = made.reported(of, here, scale=Scale(), place=HERE, is_done=done.__contains__)
    assert [one.digest for one in found] == [one.digest for one in (here[0], cuda[1], vmap[2], *here[3:])]
