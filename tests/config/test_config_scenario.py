"""Scenario files, the ready ones, and their effects on a configured run."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unstale.config import Settings, build
from unstale.config.data import ClientData, read_dataset
from unstale.config.scenario import Held, client_info, conditions, read, ready_names
from unstale.config.settings import ScenarioSettings
from unstale.errors import UserError
from unstale.policies.fedavg_sampling import FedAvgIs
from unstale.toxics.device import Device
from unstale.toxics.dropout import Dropout
from unstale.toxics.registry import TOXICS
from unstale.training.partition import label_counts


def settings_of(name: str | None, *, time_scale: float = 1.0, clients: int = 20, **settings: Any) -> Settings:
    return Settings(clients=clients, scenario=ScenarioSettings(name=name, time_scale=time_scale), **settings)


def as_file(folder: Path, text: str) -> str:
    file = folder / "mine.yaml"
    file.write_text(text)
    return str(file)


def refused(name: str) -> str:
    with pytest.raises(UserError) as raised:
        conditions(settings_of(name))
    return str(raised.value)


# --- the ready ones ---


def test_the_ready_scenarios_are_these() -> None:
    assert ready_names() == (
        "3g",
        "adversarial-01",
        "availability-01",
        "availability-05",
        "exponential",
        "fixed",
        "flaky",
        "home",
        "lognormal",
        "lte",
        "night-shift",
        "office",
        "satellite",
        "slow-tenth",
        "staleness-40",
    )


@pytest.mark.parametrize("name", ready_names())
def test_a_ready_scenario_says_what_it_is_and_does_something(name: str) -> None:
    scenario = read(name)
    made = conditions(settings_of(name))
    assert scenario.description.endswith(".")
    assert made.toxics or made.devices or made.stale_rounds
    assert scenario.scaled(0.1).scaled(10).groups[0].name == scenario.groups[0].name


def test_fixed_times_are_a_second_and_at_most_a_thousandth_more() -> None:
    devices = conditions(settings_of("fixed")).devices
    times = [devices.duration_s(client, number, 5) for client in range(20) for number in range(20)]
    assert 1 <= min(times) < 1.0001
    assert 1.0009 < max(times) <= 1.001


def test_a_tenth_is_slow_and_takes_twice_as_long() -> None:
    slow, even = (conditions(settings_of(name)).devices for name in ("slow-tenth", "exponential"))
    factors = [slow.duration_s(client, 3, 5) / even.duration_s(client, 3, 5) for client in range(20)]
    assert sorted(factors) == pytest.approx([1.0] * 18 + [2.0] * 2)


def test_those_that_hold_the_most_of_class_5_are_40_rounds_late() -> None:
    settings = settings_of("staleness-40")
    data = read_dataset(settings.data)
    labels_N = data.train.labels_N.numpy()
    sizes = [int((labels_N[own] == 5).sum()) for own in ClientData.of(settings, data).train()]
    expected = sorted(range(len(sizes)), key=lambda client: (sizes[client], client))[-10:]
    assert dict(conditions(settings).stale_rounds) == dict.fromkeys(expected, 40)


@pytest.mark.parametrize(("name", "least"), [("availability-01", 0.1), ("availability-05", 0.5)])
def test_availability_is_uniform_above_its_least(name: str, least: float) -> None:
    availability = conditions(settings_of(name, clients=1000)).availability
    assert availability is not None
    assert min(availability) >= least
    # The mean of 1000 draws of U(p, 1), within four standard deviations.
    assert abs(np.mean(availability) - (1 + least) / 2) < 4 * (1 - least) / np.sqrt(12 * 1000)


# --- a run ---


def test_without_a_scenario_nothing_happens() -> None:
    made = conditions(settings_of(None))
    assert (made.toxics, bool(made.devices), dict(made.stale_rounds), made.availability) == ((), False, {}, None)


def test_all_times_are_multiplied_by_the_time_scale() -> None:
    made, scaled = (conditions(settings_of("exponential", time_scale=scale)) for scale in (1.0, 0.25))
    assert scaled.devices.duration_s(3, 4, 5) == pytest.approx(made.devices.duration_s(3, 4, 5) / 4)


def test_the_coordinator_receives_stale_clients_and_availability() -> None:
    late = build.coordinator_settings(
        settings_of("staleness-40", trigger={"name": "sync"}, selector={"name": "round-robin", "size": 10})
    )
    assert set(late.stale_rounds.values()) == {40}
    seldom = settings_of("availability-01", selector={"name": "availability", "size": 10})
    assert build.coordinator_settings(seldom).availability == conditions(seldom).availability


def test_importance_sampling_knows_the_probabilities_of_the_scenario() -> None:
    settings = settings_of("availability-05", policy={"name": "fedavg-is"}, trigger={"name": "sync"})
    policy = build.policy_in_small(settings)
    assert isinstance(policy, FedAvgIs)
    assert policy.settings.probabilities == conditions(settings).availability
    own = settings_of(
        "availability-05", policy={"name": "fedavg-is", "settings": {"probabilities": 0.3}}, trigger={"name": "sync"}
    )
    policy = build.policy_in_small(own)
    assert isinstance(policy, FedAvgIs)
    assert policy.settings.probabilities == 0.3


def test_a_configuration_is_checked_without_its_data() -> None:
    for name in ("staleness-40", "adversarial-01", "lte"):
        elsewhere = settings_of(name, data={"name": "npz", "path": "/nowhere.npz"}, trigger={"name": "sync"})
        build.check(elsewhere)
    with pytest.raises(UserError, match="unknown scenario"):
        build.check(settings_of("lta"))


def test_only_what_asks_for_classes_needs_torch() -> None:
    program = (
        "import sys; from unstale.config import Settings; from unstale.config.scenario import conditions, ready_names\n"
        "for name in ready_names():\n"
        "    if name not in ('staleness-40', 'adversarial-01'):\n"
        "        conditions(Settings(scenario={'name': name}))\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


# --- clients ---


def test_holders_come_with_the_most_first_and_of_equals_the_higher_id() -> None:
    held = Held(np.array([[1, 0], [3, 2], [0, 4], [3, 0]]))
    assert (held.clients, held.classes) == (4, 2)
    assert list(held.holders(0)) == [3, 1, 0]
    assert list(held.holders(1)) == [2, 1]
    assert [held.smallest_class(client) for client in range(4)] == [0, 0, 1, 0]


def test_the_clients_of_a_run_hold_what_its_partition_gives_them() -> None:
    settings = settings_of(None, clients=7)
    data = read_dataset(settings.data)
    counts_NC = label_counts(ClientData.of(settings, data).train(), data.train.labels_N.numpy(), data.classes)
    made, expected = client_info(settings), Held(counts_NC)
    assert (made.clients, made.classes) == (7, 10)
    assert [made.holders(label) for label in range(10)] == [expected.holders(label) for label in range(10)]
    assert [made.smallest_class(one) for one in range(7)] == [expected.smallest_class(one) for one in range(7)]


# --- files ---


def test_a_file_is_read_where_it_lies(tmp_path: Path) -> None:
    file = as_file(tmp_path, "description: d\ngroups:\n  - {name: g, clients: [0, '2-3'], device: {task: 2}}\n")
    devices = conditions(settings_of(file)).devices
    assert [devices.duration_s(client, 0, 5) for client in range(5)] == [2, 0, 2, 2, 0]


def test_paths_in_a_file_are_meant_from_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    (tmp_path / "delays.csv").write_text("time_s,delay_s\n0,1\n10,2\n")
    (tmp_path / "there.csv").write_text("client,start_s,end_s\n0,0,5\n1,0,5\n")
    file = as_file(
        tmp_path,
        "groups:\n  - name: g\n    toxics:\n"
        "    - {type: latency, delay: {distribution: trace, file: delays.csv}}\n"
        "    - {type: dropout, trace: there.csv}\n",
    )
    first, second = conditions(settings_of(file, clients=2, time_scale=2)).toxics
    assert first.toxic.model_dump()["delay"]["steps_s"] == ((0, 2), (20, 4))
    assert isinstance(second.toxic, Dropout)
    assert second.toxic.present is not None
    assert [one.intervals_s for one in second.toxic.present] == [((0, 10),), ((0, 10),)]


def test_a_name_that_no_file_can_have_is_one_sentence() -> None:
    assert refused("a\0.yaml") == ("scenario.name is 'a\\x00.yaml', expected the name of a ready scenario or a path")


def test_the_error_for_an_unknown_name_suggests_the_nearest() -> None:
    assert refused("satelite") == (
        "unknown scenario 'satelite'; did you mean 'satellite'?; a file of your own ends in .yaml, and "
        "`unstale scenario list` tells what the ready ones do"
    )


WRITTEN_OUT = "this is not plain YAML: anchors (&), aliases (*) and tags (!) are not read, write everything out"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", " is empty, expected a list of groups"),
        ("# only a comment\n", " is empty, expected a list of groups"),
        ("- 1", " holds no scenario, expected the keys description and groups"),
        ("groups: [", ", line 1: this is not plain YAML: expected the node content, but found '<stream end>'"),
        ("groups:\n- {name: a}\ngroups: []", ", line 3: this is not plain YAML: key 'groups' is given twice"),
        ("groups: [{name: a, toxics: [{type: drop, type: drop}]}]", "type' is given twice"),
        ("groups: 2026-99-99", ": this is not plain YAML: month must be in 1..12"),
        ("groups: &a\n- *a", f", line 1: {WRITTEN_OUT}"),
        ("description: d\ngroups:\n- *nowhere", f", line 3: {WRITTEN_OUT}"),
        ("groups: !!timestamp x", f", line 1: {WRITTEN_OUT}"),
        ("[" * 5000, ": mappings lie too deep in one another"),
        ("groups: [{name: g, clients: [20]}]", ", group g: clients is [20], but client 20 is none of the 20 "),
        ("groups: [{name: g, toxics: [{type: drip}]}]", ", group g, toxic 1: unknown toxic 'drip'; did you mean"),
        (
            "groups: [{name: g, toxics: [{type: dropout, trace: none.csv}]}]",
            ", group g, toxic 1 (dropout): trace FOLDER/none.csv cannot be read: No such file or directory",
        ),
        (
            "groups: [{name: g, toxics: [{type: dropout, trace: '~nobody-at-all/a.csv'}]}]",
            ", group g, toxic 1 (dropout): trace FOLDER/~nobody-at-all/a.csv cannot be read: No such file or directory",
        ),
        (
            'groups: [{name: g, toxics: [{type: dropout, trace: "~\\0"}]}]',
            ", group g, toxic 1 (dropout): trace is 'FOLDER/~\\x00', expected a path of printable characters",
        ),
    ],
)
def test_a_mistake_in_a_file_is_one_sentence_that_names_it(text: str, sentence: str, tmp_path: Path) -> None:
    file = as_file(tmp_path, text)
    said = refused(file)
    assert said.startswith(f"scenario {file}")
    assert sentence.replace("FOLDER", str(tmp_path)) in said
    assert "\n" not in said


def test_an_unknown_home_is_one_sentence() -> None:
    assert refused("~nobody-at-all/a.yaml") == ("cannot read scenario ~nobody-at-all/a.yaml: no such file or directory")


def test_a_time_scale_that_a_scenario_does_not_allow_is_one_sentence(tmp_path: Path) -> None:
    file = as_file(tmp_path, "groups: [{name: g, toxics: [{type: dropout, on_s: 60, off_s: 0.5}]}]")
    with pytest.raises(UserError) as raised:
        conditions(settings_of(file, time_scale=1e-3))
    assert str(raised.value) == (
        f"scenario {file}, group g, toxic 1 (dropout), its times multiplied by scenario.time_scale 0.001: "
        "off_s is 0.0005, expected at least 0.001"
    )


def test_a_trace_with_a_gap_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "there.csv").write_text("client,start_s,end_s\n0,5,9\n0,0,5\n")
    file = as_file(tmp_path, "groups: [{name: g, toxics: [{type: dropout, trace: there.csv}]}]")
    assert refused(file) == (
        f"scenario {file}, group g, toxic 1 (dropout): trace {tmp_path}/there.csv: "
        "client 0 is available from 0 s, expected at least 9 s, sorted and without overlap"
    )


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    missing, binary, huge = tmp_path / "missing.yaml", tmp_path / "binary.yaml", tmp_path / "huge.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    huge.write_text("#" * 1_000_001)
    assert refused(str(missing)) == f"cannot read scenario {missing}: no such file or directory"
    assert refused(str(binary)) == f"cannot read scenario {binary}: it is not UTF-8 text, expected YAML"
    assert refused(str(huge)) == (f"scenario {huge} has more than 1,000,000 bytes, expected a few groups; write ranges")


# --- the document ---

DOCUMENT = (Path(__file__).parents[2] / "docs/scenarios.md").read_text(encoding="utf-8")


def test_the_scenario_of_the_document_is_one(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)
    made = conditions(settings_of(as_file(tmp_path, text)))
    assert [one.toxic.type for one in made.toxics] == ["bandwidth", "latency", "dropout", "drop", "blackout"]


def test_the_document_names_every_ready_scenario_every_toxic_and_every_setting_of_a_device() -> None:
    first_cells = re.findall(r"^\| `([\w-]+)` \|", DOCUMENT, re.MULTILINE)
    assert sorted(first_cells) == sorted(["all", *ready_names(), *TOXICS, *Device.model_fields])
