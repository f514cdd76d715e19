"""The sources of the configuration and the messages about errors in them."""

from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from unstale.config import Given, Settings, load
from unstale.config.keys import KEYS, variable
from unstale.config.load import _by_key
from unstale.config.write import resolved as written
from unstale.errors import UserError
from unstale.settings import values
from unstale_proto import limits

OTHER = {
    "seed": 7,
    "clients": 30,
    "min_clients": 3,
    "rounds": 31,
    "evaluate_every": 2,
    "device": "cpu",
    "device_precision": "tf32",
    "evaluate_clients_every": 5,
    "model.name": "logreg",
    "model.norm": "batch",
    "model.projection_head": 256,
    "data.name": "npz",
    "data.path": "digits.npz",
    "data.cache": "/data",
    "data.download": True,
    "data.normalise": "raw",
    "data.column": "writer",
    "data.share": 0.5,
    "data.validation": 0.25,
    "data.variant.name": "npz",
    "data.variant.path": "/data/later.npz",
    "data.variant.rate": 0.25,
    "partition.name": "iid",
    "partition.alpha": 0.7,
    "partition.min_examples": 9,
    "partition.classes": 2,
    "partition.smallest": 5,
    "partition.largest": 60,
    "partition.budget": 300,
    "partition.pool": 5000,
    "partition.slow_share": 0.2,
    "partition.slow_class": 3,
    "client_settings": {"momentum": 0.9, "layers": 3, "Optimiser": "adam"},
    "app": "my_app:app",
    "flower.model": "my_app.task:Net",
    "flower.run_config": "lr=0.1",
    "flower.partition_id": 3,
    "flower.num_partitions": 10,
    "initial": "/data/first.safetensors",
    "save_model": "model.safetensors",
    "threads": 2,
    "trackers": [{"name": "mlflow", "settings": {"uri": "sqlite:///a.db"}}],
    "training.name": "gradient",
    "training.learning_rate": 0.02,
    "training.batch_size": 64,
    "training.steps": 6,
    "training.epochs": 2,
    "training.momentum": 0.9,
    "training.weight_decay": 0.001,
    "training.mu": 0.1,
    "training.temperature": 0.7,
    "training.schedule.name": "cosine",
    "training.schedule.warmup": 10,
    "training.schedule.period": 20.0,
    "training.schedule.every": 50,
    "training.schedule.factor": 0.9,
    "training.schedule.final": 0.01,
    "data.private": True,
    "objective.name": "segmentation",
    "objective.settings": {"ignore_index": 255},
    "policy.name": "fedasync",
    "policy.settings": {"alpha": 0.5},
    "partition.settings": {"share": 0.5},
    "training.settings": {"clip": [1, 2.5]},
    "trigger.settings": {"level": "high"},
    "selector.settings": {"even": True},
    "policy.server_multiplier": 0.5,
    "policy.profile": "reference",
    "policy.clip_norm": 10.0,
    "policy.norm": "mean-of-updates",
    "policy.optimiser.name": "adam",
    "policy.optimiser.learning_rate": 0.01,
    "policy.optimiser.beta1": 0.8,
    "policy.optimiser.beta2": 0.999,
    "policy.optimiser.epsilon": 0.01,
    "policy.memory": "mapped",
    "policy.memory_folder": "/data/memory",
    "compensator.name": "auto",
    "compensator.settings": {"iterations": 40},
    "ray": "local",
    "compensator.ray": "auto",
    "compensator.ray_gpus": 0.5,
    "trigger.name": "deadline",
    "trigger.k": 11,
    "trigger.wait_s": 2.5,
    "selector.name": "random",
    "selector.size": 4,
    "encoding.updates": "top-k",
    "encoding.models": "bfloat16",
    "encoding.block": 64,
    "encoding.fraction": 0.1,
    "run.directory": "/data/run",
    "run.durability": "full",
    "run.sync_every_s": 0.25,
    "run.checkpoint_every": 7,
    "run.payload_bytes_max": 1_000_000,
    "run.rows_memory_bytes_max": 0,
    "run.keep_updates": True,
    "run.free_bytes_min": 0,
    "run.until": "mae < 0.2",
    "scenario.name": "lte",
    "scenario.time_scale": 0.1,
    "attack.name": "scale",
    "attack.factor": 30.0,
    "attack.clients": 2,
    "server.address": "tcp://127.0.0.1:6000",
    "server.http_address": "127.0.0.1:6001",
    "server.gateways": 3,
    "server.heartbeat_s": 1.5,
    "server.lease_s": 20.0,
    "server.retry_s": 3.0,
    "server.linger_s": 0.0,
    "server.stay": True,
    "server.client_messages_per_s_max": 50,
    "server.quarantine_after": None,
    "server.quarantine_s": 5.0,
    "server.hello_s": 5.0,
    "server.strangers_max": 100,
    "server.unread_bytes_max": 2**28,
    "server.memory_bytes_max": 2**31,
    "server.task_timeout_s": 60.0,
    "server.norm_max": 12.5,
    "server.num_examples_max": 99,
    "server.keys": "/data/keys",
    "server.insecure": True,
    "client.server": "tcp://10.0.0.1:6000",
    "client.first": 10,
    "client.count": 5,
    "client.patience_s": 30.0,
    "client.task_timeout_s": 45.0,
    "client.data_path": "/data/digits.npz",
    "client.directory": "/data/client",
    "client.durability": "off",
    "client.key": "/data/phone.key_secret",
    "client.server_key": "/data/injector.key",
    "client.insecure": True,
    "client.http_address": "127.0.0.1:9470",
    "injector.address": "tcp://127.0.0.1:6002",
    "injector.upstream": "tcp://10.0.0.1:6000",
    "injector.http_address": "127.0.0.1:6003",
    "injector.in_flight_bytes_max": 10_000_000,
    "injector.patience_s": 3.0,
    "injector.tcp": True,
    "injector.keys": "/data/keys",
    "injector.insecure": True,
    "simulation.backend": "loop",
    "simulation.processes": 2,
}
"""For each key a value that is not its default."""


def value_of(resolved: Settings, name: str) -> object:
    value: object = resolved
    for part in name.split("."):
        value = getattr(value, part)
    return value


def as_file(tmp_path: Path, name: str, value: object) -> Path:
    for part in reversed(name.split(".")):
        value = {part: value}
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(value))
    return file


def as_text(value: object) -> str:
    return value if isinstance(value, str) else yaml.safe_dump(value, default_flow_style=True).split("\n")[0]


def test_the_other_values_cover_every_key_and_differ_from_its_default() -> None:
    assert OTHER.keys() == KEYS.keys()
    assert [name for name, value in OTHER.items() if value == KEYS[name].default] == []


def test_settings_sent_over_the_wire_have_the_limits_of_the_wire_contract() -> None:
    assert values.CLIENTS_MAX == limits.CLIENTS_MAX
    assert values.SECONDS_MAX == limits.SECONDS_MAX
    assert values.SEED_MAX == limits.INTEGER_MAX
    assert values.NAME_MAX == limits.NAME_MAX


@pytest.mark.parametrize("name", KEYS)
def test_every_key_can_be_set_in_the_file(name: str, tmp_path: Path) -> None:
    assert value_of(load(as_file(tmp_path, name, OTHER[name])), name) == OTHER[name]


@pytest.mark.parametrize("name", KEYS)
def test_every_key_can_be_set_by_its_variable(name: str) -> None:
    variables = {KEYS[name].variable: as_text(OTHER[name])}
    assert value_of(load(variables=variables), name) == OTHER[name]


@pytest.mark.parametrize("name", KEYS)
def test_setting_a_key_changes_no_other(name: str, tmp_path: Path) -> None:
    resolved = load(as_file(tmp_path, name, OTHER[name]))
    own = {"model.name", "data.name", "evaluate_clients_every"} if name in ("app", "initial") else set()  # of an app
    own |= {"flower.partition_id": {"client.first"}, "flower.num_partitions": {"clients"}}.get(name, set())
    assert {other for other in KEYS if value_of(resolved, other) != KEYS[other].default} == {name} | own


@pytest.mark.parametrize("name", [name for name, key in KEYS.items() if key.may_be_null])
def test_null_is_no_value_in_every_source(name: str, tmp_path: Path) -> None:
    assert value_of(load(as_file(tmp_path, name, None)), name) is None
    assert value_of(load(variables={KEYS[name].variable: "null"}), name) is None
    assert value_of(load(options={name: Given(value="null", origin="--set")}), name) is None


@pytest.mark.parametrize(("in_file", "in_variable", "in_option"), list(product([False, True], repeat=3)))
def test_options_win_over_variables_over_the_file_over_defaults(
    in_file: bool, in_variable: bool, in_option: bool, tmp_path: Path
) -> None:
    resolved = load(
        as_file(tmp_path, "trigger.k", 11) if in_file else None,
        {"UNSTALE_TRIGGER__K": "12"} if in_variable else {},
        {"trigger.k": Given(value="13", origin="--k")} if in_option else {},
    )
    expected = 13 if in_option else 12 if in_variable else 11 if in_file else KEYS["trigger.k"].default
    assert resolved.trigger.k == expected


def test_sources_are_merged_key_by_key(tmp_path: Path) -> None:
    resolved = load(
        as_file(tmp_path, "training", {"steps": 9, "batch_size": 9, "learning_rate": 0.9}),
        {"UNSTALE_TRAINING__BATCH_SIZE": "8"},
        {"training.learning_rate": Given(value="0.7", origin="--lr")},
    )
    training = resolved.training
    assert (training.steps, training.batch_size, training.learning_rate) == (9, 8, 0.7)


def test_the_settings_of_a_policy_are_merged_key_by_key_too(tmp_path: Path) -> None:
    resolved = load(
        as_file(tmp_path, "policy.settings", {"alpha": 0.1, "staleness": "hinge", "b": 1}),
        {"UNSTALE_POLICY__SETTINGS": "{b: 2, a_h: 2.0}", "UNSTALE_POLICY__SETTINGS__A_H": "3.5"},
        {"policy.settings.alpha": Given(value="0.9", origin="--set")},
    )
    assert resolved.policy.settings == {"alpha": 0.9, "staleness": "hinge", "b": 2, "a_h": 3.5}


@pytest.mark.parametrize(
    ("key", "word", "value"),
    [
        ("run.durability", "off", "off"),
        ("policy.settings.haa", "off", "off"),
        ("policy.settings", "{haa: off}", {"haa": "off"}),
        ("policy.settings.egs", "false", False),
        ("server.insecure", "on", True),
        ("server.insecure", "no", False),
    ],
)
def test_off_is_a_word_where_a_word_is_expected(key: str, word: str, value: Any, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    *sections, last = key.split(".")
    file.write_text("".join(f"{'  ' * depth}{name}:\n" for depth, name in enumerate(sections)))
    with file.open("a") as more:
        more.write(f"{'  ' * len(sections)}{last}: {word}\n")
    for resolved in (
        load(file),
        load(None, {variable(key): word}),
        load(None, {}, {key: Given(value=word, origin="--set")}),
    ):
        found: Any = resolved
        for part in (*sections, last):
            found = found[part] if isinstance(found, dict) else getattr(found, part)
        assert found == value and type(found) is type(value)


def test_the_keys_of_a_part_may_stand_in_a_mapping_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(
        "training: {name: moon, settings: {mu: 2, schedule: {name: step, settings: {every: 9}}}}\n"
        "partition: {name: iid, settings: }\npolicy: {optimiser: {name: adam, settings: {beta1: 0.5}}}\n"
    )
    options = {"training.settings.momentum": Given(value="0.5", origin="--set")}
    variables = {"UNSTALE_TRIGGER__SETTINGS__K": "7"}
    assert load(file, variables, options) == Settings(
        training={"name": "moon", "mu": 2, "momentum": 0.5, "schedule": {"name": "step", "every": 9}},
        partition={"name": "iid"},
        policy={"optimiser": {"name": "adam", "beta1": 0.5}},
        trigger={"k": 7},
    )


def test_a_plug_in_has_settings_beside_the_keys_of_its_section(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("training: {name: 'a:b', settings: {clip: 1, momentum: 0.5, table: {low: 1}}}\n")
    variables = {"UNSTALE_TRAINING__SETTINGS": "{clip: 2, steps: 9}", "UNSTALE_TRIGGER__SETTINGS__LEVEL": "high"}
    options = {"training.settings.clip": Given(value="[3, 4]", origin="--set")}
    arguments = {"selector": {"name": "a:c", "settings": {"even": True, "size": 4}}}
    resolved = load(file, variables, options, arguments)
    assert resolved.training.settings == {"clip": [3, 4], "table": {"low": 1}}
    assert (resolved.training.momentum, resolved.training.steps) == (0.5, 9)
    assert resolved.trigger.settings == {"level": "high"}
    assert (resolved.selector.settings, resolved.selector.size) == ({"even": True}, 4)
    file.write_text(written(resolved))
    assert load(file) == resolved


def test_settings_made_by_hand_read_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNSTALE_ROUNDS", "3")
    assert Settings().rounds == KEYS["rounds"].default


@pytest.mark.parametrize("text", ["", "# nothing but a comment\n", "training:\n  # steps: 5\n", "policy: {settings: }"])
def test_a_file_without_values_gives_the_defaults(text: str, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    assert load(file) == Settings()


WRONG_FILES = {
    "round: 5": "FILE, line 1: unknown key 'round'; did you mean 'rounds'?",
    "seed: 1\ntrainin: {steps: 5}": "FILE, line 2: unknown key 'trainin'; did you mean 'training'?",
    "learning_rate: 1": "FILE, line 1: unknown key 'learning_rate'; did you mean 'training.learning_rate'?",
    "training:\n  learning_rat: 1": (
        "FILE, line 2: unknown key 'learning_rat' in training; did you mean 'learning_rate'?"
    ),
    "trigger: {size: 1}": "FILE, line 1: unknown key 'size' in trigger; expected one of k, name, settings, wait_s",
    "training:\n  schedule:\n    warm: 1": (
        "FILE, line 3: unknown key 'warm' in training.schedule; did you mean 'warmup'?"
    ),
    "scenario: lte": "FILE, line 1: scenario is 'lte', expected a mapping of keys",
    "scenario: {time_scale: 0}": "FILE, line 1: scenario.time_scale is 0, expected a number from 0.0001 to 1,000,000",
    "attack: {name: bit-flip}": (
        "FILE, line 1: attack.name is 'bit-flip', expected sign-flip or scale or noise or label-flip or null"
    ),
    "attack: {name: label-flip, factor: 3}": (
        "attack.factor is 3.0, which attack.name label-flip does not take; leave it out"
    ),
    "injector: {in_flight_bytes_max: 5}": (
        "FILE, line 1: injector.in_flight_bytes_max is 5, expected a whole number from 1,048,576 to 1,099,511,627,776"
    ),
    "injector: {address: 'tcp://0.0.0.0:5556'}": (
        "injector.address is 'tcp://0.0.0.0:5556', where other machines could connect in plain text, "
        "expected injector.keys, a loopback address like tcp://127.0.0.1:5556, or injector.insecure true"
    ),
    "zzz: 1": (
        "FILE, line 1: unknown key 'zzz'; expected one of app, attack, client, client_settings, clients, compensator, "
        "data, device, device_precision, encoding, evaluate_clients_every, evaluate_every, flower, initial, injector, "
        "min_clients, model, objective, partition, policy, ray, rounds, run, save_model, scenario, seed, selector, "
        "server, simulation, threads, trackers, training, trigger"
    ),
    "server: {norm_max: 0}": (
        "FILE, line 1: server.norm_max is 0, expected adaptive or a number > 0 and <= 1e+19 or null"
    ),
    "server: {norm_max: adaptiv}": (
        "FILE, line 1: server.norm_max is 'adaptiv', expected adaptive or a number > 0 and <= 1e+19 or null"
    ),
    "server: {num_examples_max: 1.5}": (
        "FILE, line 1: server.num_examples_max is 1.5, expected partition or a whole number from 1 to 9e+18 or null"
    ),
    "rounds: many": "FILE, line 1: rounds is 'many', expected a whole number from 1 to 1,000,000,000",
    "rounds: 0": "FILE, line 1: rounds is 0, expected a whole number from 1 to 1,000,000,000",
    "rounds: 2.5": "FILE, line 1: rounds is 2.5, expected a whole number from 1 to 1,000,000,000",
    "rounds: null": "FILE, line 1: rounds is null, expected a whole number from 1 to 1,000,000,000",
    "rounds: {a: 1}": "FILE, line 1: rounds is {'a': 1}, expected a whole number from 1 to 1,000,000,000",
    "training: {momentum: 1}": "FILE, line 1: training.momentum is 1, expected a number >= 0 and < 1",
    "partition: {alpha: .nan}": ("FILE, line 1: partition.alpha is nan, expected a number from 0.001 to 1,000,000"),
    "partition: {alpha: .inf}": ("FILE, line 1: partition.alpha is inf, expected a number from 0.001 to 1,000,000"),
    "training: {schedule: {name: linear}}": (
        "FILE, line 1: training.schedule.name is 'linear', "
        "expected constant or inverse or step or exponential or cosine"
    ),
    "training: {schedule: {warmup: -1}}": (
        "FILE, line 1: training.schedule.warmup is -1, expected a whole number from 0 to 1,000,000,000"
    ),
    "training: {mu: -0.1}": ("FILE, line 1: training.mu is -0.1, expected a number from 0 to 1,000,000 or null"),
    "training: {temperature: 0}": (
        "FILE, line 1: training.temperature is 0, expected a number > 0 and <= 1,000,000 or null"
    ),
    "policy: {profile: code}": "FILE, line 1: policy.profile is 'code', expected paper or reference",
    "policy: {clip_norm: 0}": (
        "FILE, line 1: policy.clip_norm is 0, expected a number > 0 and <= 1,000,000,000,000 or null"
    ),
    "policy: {memory: disk}": (
        "FILE, line 1: policy.memory is 'disk', expected auto or device or host or pinned or mapped"
    ),
    "policy: {optimiser: {name: sgd}}": (
        "FILE, line 1: policy.optimiser.name is 'sgd', expected none or momentum or adam or yogi"
    ),
    "policy: {optimiser: {beta1: 1}}": ("FILE, line 1: policy.optimiser.beta1 is 1, expected a number >= 0 and < 1"),
    "model: {norm: layer}": "FILE, line 1: model.norm is 'layer', expected group or batch",
    "model: {projection_head: 0}": (
        "FILE, line 1: model.projection_head is 0, expected a whole number from 1 to 1,000,000 or null"
    ),
    "data: {normalise: half}": ("FILE, line 1: data.normalise is 'half', expected standard or unit or raw"),
    "partition: {slow_share: 0}": ("FILE, line 1: partition.slow_share is 0, expected a number > 0 and <= 1 or null"),
    "evaluate_clients_every: 0": (
        "FILE, line 1: evaluate_clients_every is 0, expected a whole number from 1 to 1,000,000,000 or null"
    ),
    "encoding: {updates: int4}": (
        "FILE, line 1: encoding.updates is 'int4', expected float32 or bfloat16 or float16 or int8 or top-k"
    ),
    "encoding: {models: top-k}": (
        "FILE, line 1: encoding.models is 'top-k', expected float32 or bfloat16 or float16 or int8"
    ),
    "encoding: {block: 7}": "FILE, line 1: encoding.block is 7, expected a whole number from 8 to 65,536",
    "encoding: {fraction: 0.6}": "FILE, line 1: encoding.fraction is 0.6, expected a number > 0 and <= 0.5",
    "server: {insecure: 5}": "FILE, line 1: server.insecure is 5, expected true or false",
    "model: {name: 5}": "FILE, line 1: model.name is 5, expected a text of 1 to 128 characters",
    f"model: {{name: {'x' * 200}}}": (
        f"FILE, line 1: model.name is '{'x' * 79}..., expected a text of 1 to 128 characters"
    ),
    "client_settings: {nesterov: true}": (
        "client_settings.nesterov is True, expected a finite number, an integer of 64 bits, or a text of at most 200 "
        "characters"
    ),
    "client_settings: {batch size: 8}": (
        "client_settings has the name 'batch size', expected 1 to 64 characters of A-Za-z0-9_./-"
    ),
    f"client_settings: {{{', '.join(f's{index}: 1' for index in range(33))}}}": (
        "client_settings has 33 names, expected at most 32"
    ),
    "policy: {settings: 5}": "FILE, line 1: policy.settings is 5, expected a mapping of keys",
    "server: {address: 'http://127.0.0.1:80'}": (
        "FILE, line 1: server.address is 'http://127.0.0.1:80', expected tcp://HOST:PORT"
    ),
    "server: {http_address: 'localhost'}": (
        "FILE, line 1: server.http_address is 'localhost', expected HOST:PORT or null"
    ),
    "client: {server: 'tcp://example.org:70000'}": (
        "FILE, line 1: client.server is 'tcp://example.org:70000', expected tcp://HOST:PORT"
    ),
    "server: {lease_s: 2, heartbeat_s: 2}": (
        "server.lease_s is 2.0, expected more than server.heartbeat_s, which is 2.0"
    ),
    "server: {address: 'tcp://0.0.0.0:5555'}": (
        "server.address is 'tcp://0.0.0.0:5555', where other machines could connect in plain text, "
        "expected server.keys, a loopback address like tcp://127.0.0.1:5555, or server.insecure true"
    ),
    "training: {momentum: 0.1, settings: {momentum: 0.2}}": (
        "FILE, line 1: key 'training.momentum' is given twice, expected once"
    ),
    "training: {settings: 5}": "FILE, line 1: training.settings is 5, expected a mapping of keys",
    "training: {settings: {since: 2026-01-01}}": (
        "training.settings.since is datetime.date(2026, 1, 1), expected a number of 64 bits, a text, true, false, "
        "null, or a list or mapping of these"
    ),
    "objective: {settings: {depth: [1, .inf]}}": (
        "objective.settings.depth is [1, inf], expected a number of 64 bits, a text, true, false, null, or a list or "
        "mapping of these"
    ),
    "training: 5": "FILE, line 1: training is 5, expected a mapping of keys",
    "rounds: 1\nseed: 2\nrounds: 3": "FILE, line 3: key 'rounds' is given twice, expected once",
    "policy:\n  settings:\n    alpha: 1\n    alpha: 1": (
        "FILE, line 4: key 'policy.settings.alpha' is given twice, expected once"
    ),
    "? [a, b]\n: 1": "FILE, line 1: expected a key, which is one word",
    "- rounds": "FILE, line 1: expected keys and values like `rounds: 200`",
    "just words": "FILE, line 1: expected keys and values like `rounds: 200`",
    "seed: 1\nrounds: 1: 2": "FILE, line 2: this is not YAML: mapping values are not allowed here",
    "rounds: !python/object:os.system {}": (
        "FILE, line 1: this is not YAML: could not determine a constructor for the tag '!python/object:os.system'"
    ),
    "rounds: 2026-99-99": "FILE, line 1: this is not YAML: month must be in 1..12",
    "rounds: *nowhere": "FILE, line 1: this is not YAML: found undefined alias 'nowhere'",
    "rounds: " + "[" * 5000: "FILE: mappings lie too deep in one another",
}


@pytest.mark.parametrize(("text", "sentence"), WRONG_FILES.items())
def test_a_mistake_in_the_file_is_one_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(UserError) as raised:
        load(file)
    assert str(raised.value) == sentence.replace("FILE", str(file))


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    missing, binary = tmp_path / "missing.yaml", tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    for file, why in (
        (missing, "no such file or directory"),
        (tmp_path, "is a directory"),
        (binary, "it is not UTF-8 text, expected YAML"),
    ):
        with pytest.raises(UserError) as raised:
            load(file)
        assert str(raised.value) == f"cannot read {file}: {why}"


WRONG_VARIABLES = {
    ("UNSTALE_ROUND", "5"): "UNSTALE_ROUND: unknown key 'round'; did you mean 'rounds'?",
    ("UNSTALE_TRAINING__LR", "5"): (
        "UNSTALE_TRAINING__LR: unknown key 'lr' in training; expected one of batch_size, epochs, "
        "learning_rate, momentum, mu, name, schedule, settings, steps, temperature, weight_decay"
    ),
    ("UNSTALE_TRAINING", "{steps: 5}"): (
        "UNSTALE_TRAINING: training is a group of keys, expected one of them, such as training.name"
    ),
    ("UNSTALE_ROUNDS", "x"): ("UNSTALE_ROUNDS: rounds is 'x', expected a whole number from 1 to 1,000,000,000"),
    ("UNSTALE_ROUNDS", ""): "UNSTALE_ROUNDS: rounds is '', expected a whole number from 1 to 1,000,000,000",
    ("UNSTALE_POLICY__SETTINGS", "5"): "UNSTALE_POLICY__SETTINGS: policy.settings is 5, expected a mapping of keys",
    ("UNSTALE_POLICY__SETTINGS", "{a"): (
        "UNSTALE_POLICY__SETTINGS: policy.settings is '{a', expected a mapping of keys"
    ),
}


@pytest.mark.parametrize(("variable", "sentence"), WRONG_VARIABLES.items())
def test_a_mistake_in_a_variable_is_one_sentence(variable: tuple[str, str], sentence: str) -> None:
    with pytest.raises(UserError) as raised:
        load(variables=dict([variable]))
    assert str(raised.value) == sentence


def test_variables_that_are_not_ours_and_the_name_of_the_file_are_passed_over() -> None:
    assert load(variables={"ROUNDS": "x", "_UNSTALE_ROUNDS": "x", "UNSTALE_CONFIG": "x"}) == Settings()


OF_KUBERNETES = {
    "SERVICE_HOST": "10.0.0.11",
    "SERVICE_PORT": "5555",
    "SERVICE_PORT_CLIENTS": "5555",
    "SERVICE_PORT_HTTP_METRICS": "9464",
    "PORT": "tcp://10.0.0.11:5555",
    "PORT_5555_TCP": "tcp://10.0.0.11:5555",
    "PORT_5555_TCP_PROTO": "tcp",
    "PORT_5555_TCP_PORT": "5555",
    "PORT_5555_TCP_ADDR": "10.0.0.11",
    "PORT_53_UDP": "udp://10.0.0.11:53",
}


@pytest.mark.parametrize("service", ["UNSTALE", "UNSTALE_SERVER", "UNSTALE_2_HTTP"])
def test_service_variables_of_kubernetes_are_ignored(service: str) -> None:
    assert load(variables={f"{service}_{name}": text for name, text in OF_KUBERNETES.items()}) == Settings()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("UNSTALE_PORT", "5555"),
        ("UNSTALE_SERVICE", "x"),
        ("UNSTALE_SERVICE_HOSTS", "x"),
        ("UNSTALE_PORT_TCP", "x"),
        ("UNSTALE_PORT_5555", "x"),
        ("UNSTALE_SERVER__PORT", "tcp://10.0.0.11:5555"),
        ("UNSTALE_SERVER__SERVICE_PORT", "5555"),
    ],
)
def test_what_only_looks_like_it_is_a_mistake(name: str, text: str) -> None:
    with pytest.raises(UserError, match=f"^{name}: unknown key"):
        load(variables={name: text})


def test_no_key_looks_like_what_kubernetes_says() -> None:
    for key in KEYS.values():
        assert list(_by_key({key.variable: "tcp://10.0.0.11:5555"})) == [key.name]


@pytest.mark.parametrize(
    ("address", "accepted"),
    [
        ("tcp://127.0.0.1:5555", True),
        ("tcp://127.8.8.8:0", True),
        ("tcp://localhost:5555", True),
        ("tcp://[::1]:5555", True),
        ("tcp://*:5555", False),
        ("tcp://0.0.0.0:5555", False),
        ("tcp://[::]:5555", False),
        ("tcp://eth0:5555", False),
        ("tcp://128.0.0.1:5555", False),
    ],
)
def test_only_loopback_is_listened_on_in_plain_text_unless_that_is_asked_for(address: str, accepted: bool) -> None:
    variables = {"UNSTALE_SERVER__ADDRESS": address}
    if accepted:
        assert load(variables=variables).server.address == address
    else:
        with pytest.raises(UserError):
            load(variables=variables)
    assert load(variables=variables | {"UNSTALE_SERVER__INSECURE": "true"}).server.address == address


@given(st.text(max_size=60) | st.from_regex(r"(training|policy|rounds): [\[{\]},:a1&*!-]{0,9}", fullmatch=True))
def test_any_file_gives_settings_or_a_sentence_and_nothing_else(text: str) -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "run.yaml"
        file.write_text(text, encoding="utf-8", errors="replace")
        try:
            resolved: Settings | None = load(file)
        except UserError as error:
            resolved, sentence = None, str(error)
    assert resolved is not None or (sentence and "\n" not in sentence)
