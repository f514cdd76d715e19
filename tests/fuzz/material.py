"""Material of simulations: runs, payloads, and a socket with one message."""

from typing import Any

import numpy as np
import zmq

from unstale.server.client_limits import ClientLimits
from unstale.settings.learning import SelectorSettings, TriggerSettings
from unstale_proto import limits
from unstale_proto.messages import EncodingPlan, Task

Frames = tuple[bytes, ...]


def setup(clients: int, trigger: TriggerSettings, selector: SelectorSettings | None = None, **changes: Any) -> Any:
    return {"clients": clients, "trigger": trigger, "selector": selector, "rounds": 3, **changes}


SETUPS: tuple[dict[str, Any], ...] = (
    setup(1, TriggerSettings(name="async")),
    setup(3, TriggerSettings(name="async")),
    setup(3, TriggerSettings(name="buffered", k=2), min_clients=1),
    setup(3, TriggerSettings(name="k-async", k=2), min_clients=2),
    setup(3, TriggerSettings(name="async"), once_a_cycle=True),
    setup(2, TriggerSettings(name="sync"), min_clients=1),
    setup(3, TriggerSettings(name="sync"), SelectorSettings(name="random", size=2), stale_rounds={0: 1}),
    setup(3, TriggerSettings(name="k-sync", k=1), SelectorSettings(name="round-robin", size=2), min_clients=1),
    setup(3, TriggerSettings(name="deadline", wait_s=2.0), min_clients=1, stale_rounds={2: 2}),
    setup(3, TriggerSettings(name="buffered", k=3), SelectorSettings(name="random", size=1)),
)
SESSIONS = tuple(f"{number:032x}" for number in range(6))
NORM_MAX = 100.0
PAUSES_S = (0.5, 2.0, 4.9, 5.0, 9.9, 10.0, 20.0, 1e6)


def floats(*numbers: float) -> bytes:
    return np.array(numbers, dtype="<f4").tobytes()


ONES = floats(1, 1)
PAYLOADS: tuple[Frames, ...] = (
    (ONES,),
    (ONES[:4], ONES[4:]),
    (floats(0, -1e-30),),  # its square underflows
    (floats(0, 0),),
    (floats(1, float("nan")),),
    (floats(float("-inf"), 1),),
    (floats(3e38, 3e38),),  # finite, with an infinite norm
    (floats(1e3, 1),),
    (),
    (b"",),
    (ONES, b""),
    (ONES[:3], ONES[3:]),
    (ONES[:4],),
    (ONES * 2,),
    (ONES, ONES, ONES),
    (ONES[:4],) * (limits.FRAMES_MAX + 2),
    (bytes(limits.FRAME_BYTES_MAX), ONES),
)
UPDATES = tuple(payload[0] for payload in PAYLOADS if [len(frame) for frame in payload] == [len(ONES)])


ENCODINGS: tuple[EncodingPlan | None, ...] = (
    None,
    None,
    None,
    None,
    EncodingPlan(updates="bfloat16", models="float32"),
    EncodingPlan(updates="float16", models="float32"),
    EncodingPlan(updates="int8", models="float32", block=8),
    EncodingPlan(updates="top-k", models="float32", keep=1),
)


def configuration(kind: int) -> dict[str, Any]:
    """By the bits of a number: a guard with low bounds on messages and mistakes, keys that own clients,
    a bound on the norm of updates."""
    settings: dict[str, Any] = {"client_limits": ClientLimits()}
    if kind & 1:
        settings["client_limits"] = ClientLimits(
            client_messages_per_s_max=3.0, stranger_messages_per_s_max=2.0, quarantine_after=3
        )
    if kind & 2:
        settings["may_speak"] = lambda key, client_id: key == str(client_id)
    if kind & 4:
        settings["norm_max"] = NORM_MAX
    return settings


def key_of(route: bytes) -> str:
    """The proven key of a connection: of the client whose number it ends with."""
    return route[-1:].decode()


def update_fields(task: Task | None) -> dict[str, Any]:
    """A valid update of a task, or of an unassigned one: a delta, and the row is the payload."""
    return {
        "protocol": 1,
        "type": "update",
        "task_id": 1 if task is None else task.task_id,
        "base_version": 0 if task is None else task.version,
        "kind": "delta",
        "num_examples": 8,
        "steps": 1,
        "loss": 1.0,
        "learning_rate": 1.0,
        "signature": "0" * 64,
        "payload_bytes": 8,
    }


class PlayedFrame:
    """A frame as received from a socket."""

    def __init__(self, content: bytes, more: bool) -> None:
        self.bytes = content
        self.buffer = memoryview(content)
        self.more = more

    def __len__(self) -> int:
        return len(self.bytes)


class PlayedSocket:
    """One message, frame by frame, as from a ROUTER socket."""

    def __init__(self, *frames: bytes) -> None:
        self._frames = list(frames[::-1])

    def recv(self, flags: int = 0, copy: bool = True) -> Any:
        frame = self._frames.pop()
        return frame if copy else PlayedFrame(frame, more=bool(self._frames))

    def getsockopt(self, option: int) -> int:
        assert option == zmq.RCVMORE
        return bool(self._frames)
