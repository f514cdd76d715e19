"""A small client, from PROTOCOL.md, with pyzmq and msgpack only; `--fault NAME` breaks one rule."""

# ruff: noqa: TID251  (a client in another language has a clock of its own)
import argparse
import hashlib
import secrets
import struct
import sys
import time
from math import prod
from typing import Any

import msgpack
import zmq

FINAL_ERRORS = ("unknown-client", "not-the-owner", "wrong-protocol")
GREETING_S = 1.0


def digest(tensors: list[dict[str, Any]]) -> str:
    parts = b""
    for tensor in tensors:
        name, shape, dtype = tensor["name"].encode(), tensor["shape"], tensor["dtype"].encode()
        parts += struct.pack("<I", len(name)) + name + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        parts += struct.pack("<I", len(dtype)) + dtype
    return hashlib.sha256(parts).hexdigest()


class Client:
    def __init__(self, address: str, client_id: int, fault: str) -> None:
        self.client_id, self.fault = client_id, fault
        self.session = secrets.token_hex(16)
        context: Any = zmq.Context.instance()
        self.socket = context.socket(zmq.DEALER)
        self.socket.linger = 2000
        self.socket.reconnect_ivl = 20
        self.socket.connect(address)
        self.welcome: dict[str, Any] = {}
        self.is_in = self.is_over = False
        self.task: dict[str, Any] = {}
        self.done_s = 0.0
        self.kept: dict[int, list[Any]] = {}  # by task: beat, frames
        self.greatest = self.newest = self.beats = 0
        self.heard: int | None = None
        self.heard_s = self.due_s = time.monotonic()

    def send(self, name: str, *frames: bytes, **fields: Any) -> None:
        self.socket.send_multipart([msgpack.packb({"protocol": 1, "type": name, **fields}), *frames])

    def greet(self) -> None:
        self.is_in = False
        if self.fault == "new-session":
            self.session = secrets.token_hex(16)
        current = [self.task["task_id"]] if self.task else []
        holding = [] if self.fault == "holds-nothing" else [*self.kept, *current]
        if self.fault == "holds-all" and self.greatest:
            holding = [self.greatest]
        self.send("hello", client_id=self.client_id, session=self.session, holding=holding)
        self.due_s = time.monotonic() + GREETING_S

    def beat(self) -> None:
        newest = 0 if self.fault == "no-newest-task" else self.newest
        heard = {} if self.heard is None or self.fault == "no-heard" else {"heard": self.heard}
        self.send("heartbeat", number=self.beats, version=0, newest_task=newest, **heard)
        self.beats += 1
        self.due_s = time.monotonic() + self.welcome["heartbeat_s"]

    def send_update(self, task_id: int) -> None:
        if self.fault == "other-bytes" and self.kept[task_id][0] is not None:
            self.kept[task_id][1][1] = bytes(reversed(self.kept[task_id][1][1]))
        self.kept[task_id][0] = self.beats
        self.socket.send_multipart(self.kept[task_id][1])

    def train(self) -> None:
        task = self.task
        numbers = struct.unpack(f"<{len(task['model']) // 4}f", task["model"])
        body = struct.pack(f"<{len(numbers)}f", *(number / 2 for number in numbers))
        body = {"nan": b"\x00\x00\xc0\x7f" * len(numbers), "short": body[:-4]}.get(self.fault, body)
        fields = {
            "task_id": task["task_id"],
            "base_version": task["version"] + (self.fault == "wrong-base"),
            "kind": "delta",
            "num_examples": 4,
            "steps": 1,
            "loss": 0.5,
            "learning_rate": task["learning_rate"],
            "signature": task["signature"],
            "payload_bytes": len(body),
        }
        if self.fault == "wrong-checksum":
            fields["checksum"] = "0" * 16
        header = msgpack.packb({"protocol": 1, "type": "update", **fields})
        self.kept[task["task_id"]] = [None, [header, body]]
        self.task = {}
        if self.is_in:
            self.send_update(task["task_id"])

    def on_welcome(self, fields: dict[str, Any]) -> None:
        if fields["run_id"] != self.welcome.get("run_id") and self.fault != "keeps-other-run":
            self.kept, self.task, self.greatest, self.newest, self.heard = {}, {}, 0, 0, None
        self.welcome = fields
        if self.fault == "restarts-numbers":
            self.beats, self.heard = 0, None
        if not self.is_in:
            self.is_in = True
            self.due_s = time.monotonic() + fields["heartbeat_s"]
            if self.fault != "no-resend-on-welcome":
                for task_id in self.kept:
                    self.send_update(task_id)

    def on_task(self, fields: dict[str, Any], frames: list[bytes]) -> None:
        is_other_run = fields.get("run_id", self.welcome["run_id"]) != self.welcome["run_id"]
        if is_other_run and self.fault != "takes-other-run":
            return
        if fields["task_id"] <= self.greatest and self.fault != "takes-copies":
            return
        size = 4 * sum(prod(tensor["shape"]) for tensor in self.welcome["tensors"])
        model = b"".join(frames)
        if fields["signature"] != digest(self.welcome["tensors"]) and self.fault != "takes-any-signature":
            self.send("error", reason="wrong-signature", task_id=fields["task_id"])
            return
        if len(model) != size and self.fault != "takes-any-size":
            self.send("error", reason="wrong-size", task_id=fields["task_id"])
            if self.fault == "counts-refused":
                self.greatest = fields["task_id"]
            return
        if self.task and self.fault == "finishes-old-task":
            return
        self.task = fields | {"model": model}
        self.greatest = self.newest = fields["task_id"]
        self.done_s = time.monotonic() + self.welcome["settings"]["train_s"]
        if self.fault == "silent-training":
            time.sleep(self.welcome["settings"]["train_s"])

    def on_ack(self, fields: dict[str, Any]) -> None:
        is_damaged = fields.get("reason") == "unknown-task" and fields["task_id"] == self.greatest
        if is_damaged and self.fault != "keeps-damaged-id":
            self.greatest = self.newest = 0
        if self.fault == "keeps-rejected" and fields["first_outcome"] == "rejected":
            return
        if self.fault == "keeps-duplicate" and fields["outcome"] == "duplicate":
            return
        self.kept.pop(fields["task_id"], None)

    def on_heartbeat(self, fields: dict[str, Any]) -> None:
        if self.is_in and fields["number"] < self.beats:
            self.heard = max(fields["number"], self.heard or 0)
            for task_id, (beat, _frames) in list(self.kept.items()):
                if beat <= fields["number"] and self.fault != "no-resend":
                    self.send_update(task_id)

    def on_stop(self, fields: dict[str, Any]) -> None:
        is_end = fields["reason"] != "shutdown" or fields.get("failed", False)
        if fields["reason"] == self.fault.removeprefix("ignores-"):
            return
        if fields["reason"] != "superseded":
            self.send("bye")
        self.is_in, self.is_over = False, is_end or self.fault == "ends-at-shutdown"
        self.due_s = time.monotonic() + GREETING_S

    def on_error(self, fields: dict[str, Any]) -> None:
        if fields["reason"] == "hello-first" and self.is_in:
            self.greet()
        elif fields["reason"] == "quarantined":
            self.is_in, self.due_s = False, time.monotonic() + GREETING_S
        elif fields["reason"] in FINAL_ERRORS and self.fault != f"ignores-{fields['reason']}":
            self.is_over = True

    def on_message(self, header: bytes, frames: list[bytes]) -> None:
        if self.fault == "dies-of-garbage":
            fields = msgpack.unpackb(header)
        else:
            try:
                fields = msgpack.unpackb(header)
            except (ValueError, msgpack.UnpackException):
                return
        self.heard_s = time.monotonic()
        if fields["type"] == "task":
            self.on_task(fields, frames)
        elif handler := getattr(self, f"on_{fields['type']}", None):
            handler(fields)

    def step(self) -> None:
        if self.socket.poll(10):
            header, *frames = self.socket.recv_multipart()
            self.on_message(header, frames)
        now_s = time.monotonic()
        if self.is_over:
            return
        if self.task and now_s >= self.done_s:
            self.train()
        if self.fault == "resends-always" and self.is_in and self.beats % 2:
            for task_id in self.kept:
                self.send_update(task_id)
        if now_s >= self.due_s:
            if self.is_in and now_s - self.heard_s > self.welcome["lease_s"] and self.fault != "waits-for-ever":
                self.greet()
            elif self.is_in:
                self.beat()
            elif self.welcome or self.fault != "one-hello":
                self.greet()


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("address", "client-id", "folder"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--fault", default="")
    given = parser.parse_args()
    client = Client(given.address, int(given.client_id), given.fault)
    client.greet()
    while not client.is_over:
        client.step()
    client.socket.close()
    zmq.Context.instance().term()
    if client.fault == "exit-code":
        sys.exit(3)


main()
