"""The client in C++: its vectors, and runs over sockets with a server that the command line starts."""

import hashlib
import json
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgpack
import numpy as np
import pytest
import xxhash
import zmq
from safetensors.numpy import load_file, save_file

EXAMPLE = Path(__file__).parents[2] / "examples" / "cpp"
UNSTALE = str(Path(sys.executable).parent / "unstale")
PACKAGES = "apt-get install g++ make libzmq3-dev libsodium-dev libxxhash-dev"
DEADLINE_S = 120
POLL_S = 0.02
POLLS = int(DEADLINE_S / POLL_S)

pytestmark = [pytest.mark.slow, pytest.mark.network]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the built programs."""
    missing = [tool for tool in ("g++", "make") if shutil.which(tool) is None]
    if missing:
        pytest.fail(f"The client in C++ needs {' and '.join(missing)}: run `{PACKAGES}`.", pytrace=False)
    folder = tmp_path_factory.mktemp("cpp")
    made = _make(folder, "all")
    if made.returncode:
        pytest.fail(f"The client in C++ does not build; run `{PACKAGES}`:\n{made.stderr}", pytrace=False)
    return folder


def _make(folder: Path, target: str) -> "subprocess.CompletedProcess[str]":
    command = ["make", "-C", str(EXAMPLE), f"O={folder}", target]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


class Processes:
    """Server and clients of a test in one folder."""

    def __init__(self, folder: Path, built: Path) -> None:
        self.folder = folder
        self.built = built
        self.started: list[subprocess.Popen[bytes]] = []
        self.address = "tcp://127.0.0.1:0"

    def _start(self, command: list[str], log: str) -> "subprocess.Popen[bytes]":
        with (self.folder / log).open("wb") as out:
            process = subprocess.Popen(command, cwd=self.folder, stdout=out, stderr=subprocess.STDOUT)
        self.started.append(process)
        return process

    def server(self, *options: str, log: str = "server.log") -> "subprocess.Popen[bytes]":
        """A server of `model.safetensors` in rounds of all clients; the second one has the address of the first."""
        fixed = "--initial model.safetensors --lr 0.1 --trigger sync --policy fedavg --save-model trained.safetensors"
        command = [UNSTALE, "server", *fixed.split(), "--address", self.address, "--set", "server.http_address=null"]
        process = self._start([*command, *options], log)
        self.address = self.wait_for(log, r"listening at (tcp://\S+)")
        return process

    def client(self, client_id: int, *options: str, log: str = "client.log") -> "subprocess.Popen[bytes]":
        data = ["--data", f"{client_id}.csv", "--id", str(client_id), "--server", self.address]
        return self._start([str(self.built / "client"), *data, *options], log)

    def wait_for(self, log: str, pattern: str) -> str:
        for _ in range(POLLS):
            if found := re.search(pattern, self.text(log)):
                return found[found.re.groups]
            time.sleep(POLL_S)
        pytest.fail(f"{log} has no {pattern!r}:\n{self.text(log)}")

    def text(self, log: str) -> str:
        return (self.folder / log).read_text()

    def trained(self) -> np.ndarray:
        return load_file(self.folder / "trained.safetensors")["weight"]


@pytest.fixture
def processes(tmp_path: Path, built: Path) -> Iterator[Processes]:
    """Processes that end with the test."""
    both = Processes(tmp_path, built)
    yield both
    for process in both.started:
        process.kill()
        process.wait()


def _inputs(folder: Path, numbers: int, *rows: str) -> None:
    save_file({"weight": np.zeros(numbers, np.float32)}, folder / "model.safetensors")
    for client_id, text in enumerate(rows):
        (folder / f"{client_id}.csv").write_text(text)


def test_vectors(built: Path) -> None:
    checked = _make(built, "check")
    assert checked.returncode == 0, checked.stderr
    assert re.search(r"^[1-9]\d* passed, 0 failed$", checked.stdout, re.MULTILINE), checked.stdout


def test_one_round_of_one_step_is_fedavg_by_hand(processes: Processes) -> None:
    """Rows with the means (2, 4) of 3 rows and (-2, 0) of one: 0.1 * (3 * mean0 + mean1) / 4."""
    _inputs(processes.folder, 2, "1,3\n2,4\n3,5\n", "-2,0\n")
    server = processes.server("--clients", "2", "--rounds", "1", "--set", "client_settings.steps=1")
    clients = [processes.client(n, log=f"client{n}.log") for n in range(2)]
    assert [process.wait(DEADLINE_S) for process in (server, *clients)] == [0, 0, 0]
    np.testing.assert_allclose(processes.trained(), [0.1, 0.3], rtol=1e-6)
    assert "2 accepted, 0 duplicate, 0 rejected" in processes.text("server.log")


@pytest.mark.parametrize(
    ("updates", "models", "relative"),
    [
        ("float32", "float32", 1e-6),
        ("bfloat16", "float16", 2**-8),
        ("float16", "bfloat16", 2**-7),
        ("int8", "float32", 2**-7),
    ],
)
def test_large_models_travel_in_chunks(processes: Processes, updates: str, models: str, relative: float) -> None:
    """20 MB both ways as float32: after r rounds of one step w = (1 - 0.9^r) * mean."""
    _inputs(processes.folder, 5_000_001, "1\n3\n")
    encodings = ["--encoding.updates", updates, "--encoding.models", models]
    server = processes.server("--clients", "1", "--rounds", "2", "--set", "client_settings.steps=1", *encodings)
    client = processes.client(0)
    assert [server.wait(DEADLINE_S), client.wait(DEADLINE_S)] == [0, 0], processes.text("client.log")
    np.testing.assert_allclose(processes.trained(), 2 * (1 - 0.9**2), rtol=relative)
    assert "2 accepted, 0 duplicate, 0 rejected" in processes.text("server.log")


def test_top_k_sends_what_it_kept(processes: Processes) -> None:
    """One number of three a round: 4 first, then 3 twice, as it was kept in the round before."""
    _inputs(processes.folder, 3, "2.4,3,4\n")
    options = ["--encoding.updates", "top-k", "--encoding.models", "float32", "--set", "client_settings.steps=1"]
    server = processes.server("--clients", "1", "--rounds", "2", *options)
    client = processes.client(0)
    assert [server.wait(DEADLINE_S), client.wait(DEADLINE_S)] == [0, 0], processes.text("client.log")
    np.testing.assert_allclose(processes.trained(), [0, 0.6, 0.4], rtol=1e-6)


def test_keys(processes: Processes) -> None:
    _inputs(processes.folder, 2, "1,1\n", "2,2\n")
    for words in (["server"], ["laptop", "--clients", "0"]):
        subprocess.run([UNSTALE, "keys", "new", *words], cwd=processes.folder, check=True, capture_output=True)
    server = processes.server("--clients", "2", "--min-clients", "1", "--rounds", "1", "--keys", "keys")
    key = ["--key", "keys/laptop.key_secret"]
    assert processes.client(1, *key, log="other.log").wait(DEADLINE_S) == 1
    assert "not-the-owner" in processes.text("other.log")
    assert processes.client(0, log="plain.log").wait(DEADLINE_S) == 1
    assert processes.text("plain.log") == "client: the server requires a key; give --key\n"
    client = processes.client(0, *key)
    assert [server.wait(DEADLINE_S), client.wait(DEADLINE_S)] == [0, 0], processes.text("client.log")


def test_update_survives_kills_of_client_and_server(processes: Processes) -> None:
    """The update of task 1 is made without a server, outlives its process, and counts once in a restarted server."""
    _inputs(processes.folder, 2, "1,2\n")
    options = ["--clients", "1", "--rounds", "2", "--set", "client_settings.steps=1"]
    server = processes.server(*options)
    client = processes.client(0, "--store", "store", "--pause", "1.5", log="first.log")
    processes.wait_for("first.log", "(task 1: training)")
    server.kill()
    server.wait()
    stored = processes.folder / "store" / "update-1"
    for _ in range(POLLS):
        if stored.exists():
            break
        time.sleep(POLL_S)
    client.send_signal(signal.SIGKILL)
    client.wait()
    assert stored.exists(), processes.text("first.log")
    server = processes.server(*options, log="second-server.log")
    client = processes.client(0, "--store", "store")
    assert [server.wait(DEADLINE_S), client.wait(DEADLINE_S)] == [0, 0], processes.text("client.log")
    assert "task 1: accepted" in processes.text("client.log")
    np.testing.assert_allclose(processes.trained(), [0.19, 0.38], rtol=1e-6)


def test_kill_of_a_training_client(processes: Processes) -> None:
    """A killed client loses the task that it was training, and the restarted one gets another."""
    _inputs(processes.folder, 2, "1,2\n")
    server = processes.server("--clients", "1", "--rounds", "3", "--set", "client_settings.steps=1")
    client = processes.client(0, "--pause", "0.5", log="first.log")
    processes.wait_for("first.log", "(task 1: accepted)")
    client.kill()
    client.wait()
    client = processes.client(0)
    assert [server.wait(DEADLINE_S), client.wait(DEADLINE_S)] == [0, 0], processes.text("client.log")
    np.testing.assert_allclose(processes.trained(), [1 - 0.9**3, 2 * (1 - 0.9**3)], rtol=1e-6)
    assert "3 accepted, 0 duplicate, 0 rejected" in processes.text("server.log")


class Peer:
    """A server by hand, for one client and a model of 4.8 MB."""

    numbers = 1_200_000

    def __init__(self) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVTIMEO, 1000 * DEADLINE_S)
        self.port = self.socket.bind_to_random_port("tcp://127.0.0.1")
        self.identity = b""

    def send(self, type_: str, *frames: bytes, **fields: object) -> None:
        header = msgpack.packb({"protocol": 1, "type": type_, **fields})
        self.socket.send_multipart([self.identity, header, *frames])

    def expect(self, type_: str) -> tuple[dict[str, object], list[bytes]]:
        """The next message of a type, after answers to the heartbeats before it."""
        while True:
            self.identity, header, *frames = self.socket.recv_multipart()
            fields = msgpack.unpackb(header)
            if fields["type"] == type_:
                return {**fields, "bytes": header}, frames
            assert fields["type"] in ("heartbeat", "hello"), fields

    def welcome(self) -> None:
        tensor = {"name": "w", "shape": [self.numbers], "dtype": "float32"}
        layout = struct.pack("<I1sIQI7s", 1, b"w", 1, self.numbers, 7, b"float32")
        self.signature = hashlib.sha256(layout).hexdigest()
        names = {"model": "app", "data": "private", "partition": {"name": "private"}, "training": {"name": "app"}}
        counts = {"client_id": 0, "clients": 1, "seed": 0, "version": 0, "settings": {"steps": 1}}
        times = {"heartbeat_s": 100.0, "lease_s": 1000.0}
        self.send("welcome", run_id="0" * 32, tensors=[tensor], signature=self.signature, **names, **counts, **times)


def test_upload_resumes_in_another_process(processes: Processes) -> None:
    """The first process is killed after 1 MiB of its update; the second sends the rest of the same bytes."""
    (processes.folder / "0.csv").write_text("3\n")
    peer = Peer()
    try:
        processes.address = f"tcp://127.0.0.1:{peer.port}"
        first = processes.client(0, "--store", "store", log="first.log")
        peer.expect("hello")
        peer.welcome()
        size = 4 * peer.numbers
        model = bytes(size)
        task = {"task_id": 7, "number": 0, "version": 0, "learning_rate": 0.5, "signature": peer.signature}
        peer.send("task", model[: 1 << 22], model[1 << 22 :], payload_bytes=size, **task)
        announced, frames = peer.expect("update")
        assert frames == []
        part = 1 << 20
        peer.send("credit", task_id=7, have=0, until=part, again=True)
        chunk, [begin] = peer.expect("chunk")
        assert (chunk["offset"], len(begin)) == (0, part)
        first.kill()
        first.wait()
        second = processes.client(0, "--store", "store", log="second.log")
        assert peer.expect("hello")[0]["holding"] == [7]
        peer.welcome()
        assert peer.expect("update")[0]["bytes"] == announced["bytes"]
        peer.send("credit", task_id=7, have=part, until=size, again=True)
        chunk, [rest] = peer.expect("chunk")
        assert chunk["offset"] == part
        payload = begin + rest
        assert xxhash.xxh3_64_hexdigest(payload) == announced["checksum"]
        assert np.array_equal(np.frombuffer(payload, "<f4"), np.full(peer.numbers, -1.5, "f"))
        peer.send("ack", task_id=7, outcome="accepted", first_outcome="accepted")
        processes.wait_for("second.log", "(task 7: accepted)")
        peer.send("stop", reason="finished", version=1)
        peer.expect("bye")
        peer.send("bye", reason="")
        assert second.wait(DEADLINE_S) == 0
        assert not list((processes.folder / "store").glob("update-*"))
    finally:
        peer.context.destroy(linger=0)


def test_user_errors_are_one_sentence(processes: Processes) -> None:
    _inputs(processes.folder, 2, "1,x\n")
    assert processes.client(0).wait(DEADLINE_S) == 2
    assert processes.text("client.log") == "client: `0.csv`, row 1: `x` is no finite number\n"


def test_conformance(built: Path, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("1\n2\n")
    client = f"{built}/client --server {{address}} --id {{client_id}} --store {{folder}} --key {{key}}"
    command = [UNSTALE, "conformance", "--json", "--client", f"{client} --data {tmp_path}/data.csv --pause 0.3"]
    examined = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert examined.returncode == 0, examined.stdout + examined.stderr
    verdicts = {row["verdict"] for row in json.loads(examined.stdout)}
    assert verdicts == {"passed"}
