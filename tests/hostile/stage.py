"""A real server with honest clients, as processes of their own, in a folder of their own."""

import json
import os
import resource
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import IO, Any, Self

import yaml

from hostile import gauges
from hostile.scenes import DESCRIPTORS, HONEST, HOSTILE, Scene, configuration
from support.processes import START_S, free_port
from support.running import until
from unstale.net import authorized_keys, keygen
from unstale.net.authorized_keys import ClientIds
from unstale_client.net import keys
from unstale_client.net.clock import now_s
from unstale_client.net.keys import Identity

HONEST_PROCESSES = 2
END_S = 60.0
WARM_UPDATES = 10
TESTS = Path(__file__).parents[1]

BLAMED = (
    "malformed-header",
    "wrong-signature",
    "wrong-size",
    "malformed-payload",
    "non-finite",
    "zero-update",
    "norm-too-large",
    "unknown-task",
    "unknown-version",
    "unexpected-type",
    "not-the-owner",
)
"""Reasons for which the wire contract blames the client."""


class Command:
    """One `unstale` process. Its output and errors go to files."""

    def __init__(self, folder: Path, name: str, *arguments: str, descriptors: int | None = None) -> None:
        self.output, self.log = folder / f"{name}.out", folder / f"{name}.log"
        self._files: list[IO[bytes]] = [self.output.open("wb"), self.log.open("wb")]
        path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(TESTS)])
        outside = {key: value for key, value in os.environ.items() if not key.startswith("UNSTALE_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "unstale", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=self._files[0],
            stderr=self._files[1],
            cwd=folder,
            env={**outside, "PYTHONPATH": path},
        )
        if descriptors is not None:
            resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, (descriptors, descriptors))

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    @property
    def last_line(self) -> str:
        """The last line of its log."""
        lines = self.log.read_text(errors="replace").splitlines()
        return lines[-1][:300] if lines else ""

    def fact(self, event: str) -> dict[str, Any] | None:
        """The last printed line of this event; None when there is none yet."""
        lines = [line for line in self.output.read_text().splitlines() if f'"{event}"' in line]
        facts: dict[str, Any] | None = json.loads(lines[-1]) if lines else None
        return facts

    def end(self) -> int | None:
        """End it; returns the exit code, None when it had to be killed."""
        if self.is_alive:
            self.process.send_signal(signal.SIGTERM)
        try:
            code: int | None = self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            code = None
        for file in self._files:
            file.close()
        return code


class Stage:
    """A server of a scene and its honest clients, within a context."""

    def __init__(self, scene: Scene, folder: Path, seed: int) -> None:
        self.scene = scene
        self.folder = folder
        self.client_ids = range(HONEST, HONEST + HOSTILE)
        self.identities: list[Identity | None] = [None] * HOSTILE
        self._commands: list[Command] = []
        self._honest_http: list[str] = []
        self.address = f"tcp://127.0.0.1:{free_port()}"
        self.http_address = f"127.0.0.1:{free_port()}"
        self._config = self._configure(seed)

    @property
    def run(self) -> Path:
        return self.folder / "run"

    def __enter__(self) -> Self:
        try:
            self.server = self._start("server", "server", "--json", descriptors=DESCRIPTORS)
            each = HONEST // HONEST_PROCESSES
            for first in range(0, HONEST, each):
                self._start_clients(first, each)
            until(self._is_warm, f"honest clients in {self.folder}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for command in reversed(self._commands):
            command.end()

    def accepted(self) -> float:
        """Accepted updates of honest clients, by their own count."""
        counts = [
            gauges.metric(address, "unstale_client_updates_total", outcome="accepted") for address in self._honest_http
        ]
        return sum(count or 0.0 for count in counts)

    @property
    def log_bytes(self) -> int:
        return self.server.log.stat().st_size

    def end(self) -> list[str]:
        """End the server, and check its recorded run. Returns the violations."""
        if not self.server.is_alive:
            return [f"the server ended with {self.server.end()}: {self.server.last_line}"]
        wrong = []
        code = self.server.end()
        if code != 0:
            wrong.append(f"at the request to end, the server ended with {code}: {self.server.last_line}")
        replay = Command(self.folder, "replay", "replay", str(self.run))
        if replay.process.wait(START_S):
            wrong.append(f"replay does not agree: {replay.last_line}")
        replay.end()
        if self.scene.warm and (blamed := self.blamed()):
            wrong.append(f"honest clients were refused: {blamed}")
        return wrong

    def blamed(self) -> dict[str, int]:
        """Refused updates of honest clients by reason, for reasons that blame the client."""
        rows = self._rows(
            "SELECT reason, count(*) FROM updates WHERE reason IS NOT NULL AND client_id < ? GROUP BY reason"
        )
        return {reason: count for reason, count in rows if reason in BLAMED}

    def evaluations_of_the_hostile(self) -> int:
        """Evaluations of hostile clients in the run."""
        [(count,)] = self._rows(
            "SELECT count(*) FROM own_evaluations JOIN updates USING (seq) WHERE updates.client_id >= ?"
        )
        return int(count)

    def weight_of_the_hostile(self) -> float:
        """The greatest weight of an update of a hostile client in a round with one of an honest client."""
        [(weight,)] = self._rows(
            "SELECT max(weight) FROM updates WHERE client_id >= ?1 AND round IN "
            "(SELECT round FROM updates WHERE client_id < ?1)"
        )
        return float(weight or 0.0)

    def accuracy(self) -> float | None:
        """On the test set, as last measured."""
        fact = self.server.fact("progress")
        return None if fact is None else fact["accuracy"]

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(f"file:{self.run / 'run.db'}?mode=ro", uri=True)) as database:
            return database.execute(query, (HONEST,)).fetchall()

    def _is_warm(self) -> bool:
        assert all(command.is_alive for command in self._commands), [command.last_line for command in self._commands]
        if self.scene.warm:
            return self.accepted() >= WARM_UPDATES
        return (gauges.metric(self.http_address, "unstale_clients", state="waiting") or 0) >= HONEST

    def _start(self, name: str, command: str, *arguments: str, descriptors: int | None = None) -> Command:
        started = Command(
            self.folder, name, command, "--config", str(self._config), *arguments, descriptors=descriptors
        )
        self._commands.append(started)
        return started

    def _start_clients(self, first: int, count: int) -> None:
        http_address = f"127.0.0.1:{free_port()}"
        self._honest_http.append(http_address)
        key = ["--key", str(self._key("honest"))] if self.scene.keys else []
        share = ["--first", str(first), "--count", str(count), "--client.http-address", http_address]
        self._start(f"honest-{first}", "client", *share, *key)

    def _configure(self, seed: int) -> Path:
        scenario = self.folder / "devices.yaml"
        device = {"task": {"distribution": "constant", "value_s": self.scene.task_s}}
        scenario.write_text(yaml.safe_dump({"groups": [{"name": "honest", "device": device}]}))
        settings = configuration(self.scene, seed)
        gateways = int(os.environ.get("GATEWAYS", "0"))  # `make hostile GATEWAYS=1`
        settings["server"] |= {"address": self.address, "http_address": self.http_address, "gateways": gateways}
        settings["run"] |= {"directory": str(self.run)}
        settings["client"] |= {"server": self.address, "directory": str(self.folder / "clients")}
        settings["scenario"] = {"name": str(scenario)}
        if self.scene.keys:
            settings["server"]["keys"] = str(self._make_keys())
        config = self.folder / "config.yaml"
        config.write_text(yaml.safe_dump(settings))
        return config

    def _key(self, name: str) -> Path:
        return self.folder / "keys" / f"{name}{keys.SECRET_SUFFIX}"

    def _make_keys(self) -> Path:
        folder = self.folder / "keys"
        keygen.create(folder, authorized_keys.SERVER, None)
        keygen.create(folder, "honest", ClientIds.parse(f"0-{HONEST - 1}", "honest"))
        for place, client_id in enumerate(self.client_ids):
            name = f"hostile-{client_id}"
            keygen.create(folder, name, ClientIds.parse(str(client_id), name))
            self.identities[place] = keys.identity(self._key(name), "client.key")
        return folder


def elapsed(since_s: float) -> float:
    """Seconds since a time on the clock of `now_s`."""
    return now_s() - since_s
