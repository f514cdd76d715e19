"""Translation of a scenario into objects of Chaos Mesh, as plain data.

Chaos Mesh changes packets below TCP and does not know messages. A toxic with a similar effect there is translated, with
a remark about the difference; another one is left out with the reason. Clients are in pods of a Job, several in each.
They send to the address of a Service, not of the server's pod: faults of messages to the server have no target.
Source: Chaos Mesh API chaos-mesh.org/v1alpha1, https://chaos-mesh.org/docs/
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any

from unstale.toxics.bandwidth import Bandwidth
from unstale.toxics.blackout import Blackout
from unstale.toxics.delay import Constant, Delay, Normal, Uniform
from unstale.toxics.drop import Drop
from unstale.toxics.dropout import Dropout
from unstale.toxics.latency import Latency
from unstale.toxics.scenario import Conditions, unused
from unstale.toxics.toxic import Toxic

Object = dict[str, Any]

API_VERSION = "chaos-mesh.org/v1alpha1"
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
NAME_MAX = 50  # characters; Kubernetes allows 63, and Chaos Mesh appends to it
QUEUE_BYTES = 20 * 1024 * 1024  # queue of a slow channel; more is lost and retransmitted
BURST_BYTES = 16 * 1024  # a few packets

_DIRECTIONS_OF_SERVER = {"up": "from", "down": "to", "both": "both"}
_WITHOUT_FAULT = {
    "duplicate": "a packet that comes twice is dropped by TCP, so no message would come twice",
    "reorder": "TCP puts packets in order again, so no message would pass another",
    "corrupt": "a damaged packet is dropped by TCP, so no message would be damaged",
    "disconnect": "it has no fault that breaks a connection at a message",
    "slow": "it knows no tasks and updates",
}


class _NotTranslatableError(Exception):
    """Chaos Mesh has no similar fault. The message is the reason."""


@dataclass(frozen=True, slots=True)
class Fault:
    """An object to apply. remark: differences from the scenario; "" if there are none."""

    manifest: Object
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Translation:
    """Faults of Chaos Mesh, and reasons for toxics without one."""

    faults: tuple[Fault, ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """The pods of the clients of a run, with clients_each in all but the last."""

    clients: int
    clients_each: int
    namespace: str

    @property
    def count(self) -> int:
        return ceil(self.clients / self.clients_each)

    def of(self, clients: frozenset[int] | None) -> tuple[int, ...] | None:
        """Indices of the pods of these clients, and of no others; None for all."""
        if clients is None or len(clients) == self.clients:
            return None
        indices = sorted({client_id // self.clients_each for client_id in clients})
        for index in indices:
            in_pod = range(index * self.clients_each, min((index + 1) * self.clients_each, self.clients))
            others = [client_id for client_id in in_pod if client_id not in clients]
            if others:
                raise _NotTranslatableError(
                    f"client {others[0]} is in pod {index}, too, and a pod's clients cannot be told apart"
                )
        return tuple(indices)

    def selector(self, component: str, indices: Sequence[int] | None = None) -> Object:
        """Selector of the pods of the clients or the server. indices: of clients' pods; None for all."""
        labels = {"app.kubernetes.io/name": "unstale", "app.kubernetes.io/component": component}
        selector: Object = {"namespaces": [self.namespace], "labelSelectors": labels}
        if indices is not None:
            values = [str(index) for index in indices]
            selector["expressionSelectors"] = [{"key": INDEX_LABEL, "operator": "In", "values": values}]
        return {"selector": selector, "mode": "all"}


@dataclass(frozen=True, slots=True)
class _Experiment:
    """A fault without its times. kind: NetworkChaos or PodChaos. suffix: of its name."""

    kind: str
    spec: Object
    remark: str
    suffix: str = ""


def translated(conditions: Conditions, pods: Pods) -> Translation:
    faults: list[Fault] = []
    left_out = []
    taken: set[str] = set()
    for applied in conditions.toxics:
        toxic = applied.toxic
        try:
            _check_is_translatable(toxic)
            for experiment in _experiments(toxic, pods, pods.of(applied.clients)):
                name = unused(_name(f"{toxic.name} {experiment.suffix}"), taken)
                taken.add(name)
                faults.append(_fault(name, experiment, toxic, pods.namespace))
        except _NotTranslatableError as error:
            left_out.append(f"toxic {toxic.name} ({toxic.type}): {error}")
    if conditions.devices:
        left_out.append("devices: clients simulate them, if they receive the scenario")
    if conditions.stale_rounds:
        left_out.append("stale_rounds: the server simulates them, if it receives the scenario")
    return Translation(tuple(faults), tuple(left_out))


def _check_is_translatable(toxic: Toxic) -> None:
    if toxic.type in _WITHOUT_FAULT:
        raise _NotTranslatableError(_WITHOUT_FAULT[toxic.type])
    if toxic.messages is not None:
        raise _NotTranslatableError("it knows no messages, and this toxic touches some types only")
    if toxic.toxicity < 1 and not isinstance(toxic, Drop):
        raise _NotTranslatableError(f"it cannot touch a share of {toxic.toxicity:g}, only everything")


def _experiments(toxic: Toxic, pods: Pods, indices: Sequence[int] | None) -> Iterator[_Experiment]:
    match toxic:
        case Latency():
            latency_s, jitter_s, remark = _as_uniform(toxic.delay)
            delay = {"latency": duration(latency_s), "jitter": duration(jitter_s), "correlation": "0"}
            yield from _network_faults("delay", delay, toxic, pods, indices, remark)
        case Drop():
            remark = "packets are lost, not messages: TCP retransmits them, so all messages arrive, some of them late"
            loss = {"loss": f"{100 * toxic.toxicity:g}", "correlation": "0"}
            yield from _network_faults("loss", loss, toxic, pods, indices, remark)
        case Blackout():
            yield _partition(toxic, pods, indices)
        case Bandwidth():
            each = pods.clients_each
            bytes_per_s = max(1, round(toxic.bytes_per_s * each))  # their bps are bytes per second
            rate = {"rate": f"{bytes_per_s}bps", "limit": QUEUE_BYTES, "buffer": BURST_BYTES}
            remark = f"the {each} clients of a pod share a channel of {each} times the rate" if each > 1 else ""
            yield from _network_faults("bandwidth", rate, toxic, pods, indices, remark)
        case Dropout():
            yield _failures(toxic, pods, indices)
        case _:
            raise _NotTranslatableError("it has no such fault")


def _as_uniform(delay: Delay) -> tuple[float, float, str]:
    """Mean and half width in seconds of a uniform distribution, and a remark."""
    match delay:
        case Constant():
            return delay.value_s, 0.0, ""
        case Uniform():
            return (delay.low_s + delay.high_s) / 2, (delay.high_s - delay.low_s) / 2, ""
        case Normal():
            remark = "delays are uniform, with the mean and the deviation of the normal ones"
            return delay.mean_s, sqrt(3) * delay.deviation_s, remark if delay.deviation_s else ""
        case _:
            raise _NotTranslatableError(f"its delays are uniform, and cannot be {delay.distribution}")


def _partition(toxic: Blackout, pods: Pods, indices: Sequence[int] | None) -> _Experiment:
    direction, target = _DIRECTIONS_OF_SERVER[toxic.direction], pods.selector("client", indices)
    spec = {"action": "partition", **pods.selector("server"), "direction": direction, "target": target}
    remark = "messages are not lost: TCP sends them when the blackout is over"
    return _Experiment("NetworkChaos", spec, remark if toxic.layer == "message" else "")


def _failures(toxic: Dropout, pods: Pods, indices: Sequence[int] | None) -> _Experiment:
    if toxic.by_rounds:
        raise _NotTranslatableError("it has no rounds")
    if toxic.on_s is None or toxic.off_s is None:
        raise _NotTranslatableError("it cannot follow a trace")
    percent = round(100 * toxic.off_s / (toxic.on_s + toxic.off_s))
    if percent == 0:
        raise _NotTranslatableError("fewer than one pod in two hundred would fail")
    selector = pods.selector("client", indices)
    spec = {"action": "pod-failure", **selector, "mode": "fixed-percent", "value": str(percent)}
    remark = f"{percent} % of the pods, drawn each time, end for off_s and restart"
    return _Experiment("PodChaos", spec, remark)


def _network_faults(
    action: str, settings: Object, toxic: Toxic, pods: Pods, indices: Sequence[int] | None, remark: str
) -> Iterator[_Experiment]:
    """Faults of messages of the clients, and to them. A bandwidth to them has an object for each pod."""
    if toxic.direction != "down":
        spec = {"action": action, **pods.selector("client", indices), action: settings}
        yield _Experiment("NetworkChaos", spec, remark, "up")
    targets: list[tuple[str, Sequence[int] | None]] = [("down", indices)]
    if action == "bandwidth":
        targets = [(f"down {i}", [i]) for i in (range(pods.count) if indices is None else indices)]
    for suffix, target in targets if toxic.direction != "up" else ():
        spec = {"action": action, **pods.selector("server"), action: settings}
        if target is not None:
            spec |= {"direction": "to", "target": pods.selector("client", target)}
        yield _Experiment("NetworkChaos", spec, remark, suffix)


# --- times ---


def _fault(name: str, experiment: _Experiment, toxic: Toxic, namespace: str) -> Fault:
    """An experiment with its times, which count from when it is applied."""
    kind, spec, remarks = experiment.kind, experiment.spec, [experiment.remark]
    lasts_s = None if toxic.end_s is None else toxic.end_s - toxic.start_s
    every_s = _every_s(toxic)
    if every_s is not None:
        remarks.append(f"the first begins {every_s:g} s after it is applied")
        kind, spec = "Schedule", _repeated(kind, spec, every_s, lasts_s)
        if spec["type"] == "PodChaos" and (toxic.start_s or lasts_s is not None):
            remarks.append("it has no start and no end")
    elif toxic.start_s:
        kind, spec = "Workflow", _postponed(kind, spec, toxic.start_s, lasts_s)
    elif lasts_s is not None:
        spec = {**spec, "duration": duration(lasts_s)}
    labels = {"app.kubernetes.io/name": "unstale", "app.kubernetes.io/component": "chaos"}
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    manifest = {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}
    return Fault(manifest, "; ".join(filter(None, remarks)))


def _every_s(toxic: Toxic) -> float | None:
    if isinstance(toxic, Dropout):
        return toxic.off_s
    return toxic.every_s if isinstance(toxic, Blackout) else None


def _repeated(kind: str, spec: Object, every_s: float, lasts_s: float | None) -> Object:
    """Failures of pods follow one another without a pause; blackouts do not overlap."""
    is_failure = kind == "PodChaos"
    lasts_s = every_s if is_failure or lasts_s is None else lasts_s
    return {
        "schedule": f"@every {max(1, round(every_s))}s",  # in whole seconds
        "concurrencyPolicy": "Allow" if is_failure else "Forbid",
        "historyLimit": 2,
        "type": kind,
        kind[0].lower() + kind[1:]: {**spec, "duration": duration(lasts_s)},
    }


def _postponed(kind: str, spec: Object, start_s: float, lasts_s: float | None) -> Object:
    deadline = {} if lasts_s is None else {"deadline": duration(lasts_s)}
    return {
        "entry": "all",
        "templates": [
            {"name": "all", "templateType": "Serial", "children": ["before", "fault"]},
            {"name": "before", "templateType": "Suspend", "deadline": duration(start_s)},
            {"name": "fault", "templateType": kind, **deadline, kind[0].lower() + kind[1:]: spec},
        ],
    }


def duration(seconds: float) -> str:
    """A duration in the format of Go, to the microsecond: `60s`, `1.5ms`."""
    if seconds == round(seconds):
        return f"{seconds:.0f}s"
    return f"{seconds * 1000:.3f}".rstrip("0").rstrip(".") + "ms"


def _name(text: str) -> str:
    """A valid name in Kubernetes: letters, digits and dashes."""
    plain = re.sub(r"[^a-z0-9]+", "-", f"unstale {text}".lower())
    return plain[:NAME_MAX].strip("-")
