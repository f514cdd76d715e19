"""A scenario as objects of Chaos Mesh, which does to pods and their network what an injector cannot; as plain data.

Chaos Mesh changes packets below TCP and knows no messages, so little of a scenario is the same there. What is nearly
the same is made with a remark, and what is not is left out with the reason. Clients are pods of a Job, so many to each,
as in the manifests that come with unstale; the other side is the server's pod.

Clients send to the address of a Service, which is none of the server's pod, so what they send is changed without naming
a target. What the server sends goes to the addresses of their pods.

Source: Chaos Mesh API chaos-mesh.org/v1alpha1, https://chaos-mesh.org/docs/
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any

from unstale.toxics.bandwidth import Bandwidth
from unstale.toxics.blackout import Blackout
from unstale.toxics.delay import Constant, Delay, Normal, Uniform
from unstale.toxics.drop import Drop
from unstale.toxics.dropout import Dropout
from unstale.toxics.latency import Latency
from unstale.toxics.link import Applied
from unstale.toxics.scenario import Conditions, unused
from unstale.toxics.toxic import Toxic

Object = dict[str, Any]

API_VERSION = "chaos-mesh.org/v1alpha1"
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
NAME_MAX = 50  # characters; Kubernetes allows 63, and Chaos Mesh adds its own
QUEUE_BYTES = 20 * 1024 * 1024  # what waits for a slow line; more is lost and sent again
BURST_BYTES = 16 * 1024  # what passes at once: a few packets, and more than one at any rate

_SEEN_BY_THE_SERVER = {"up": "from", "down": "to", "both": "both"}
_HIDDEN = {
    "duplicate": "a packet that comes twice is dropped by TCP, so no message would come twice",
    "reorder": "TCP puts packets in order again, so no message would pass another",
    "corrupt": "a damaged packet is dropped by TCP, so no message would be damaged",
    "disconnect": "it has no fault that breaks a connection at a message",
    "slow": "it knows no tasks and updates",
}


class _CannotSayError(Exception):
    """Chaos Mesh has nothing like it. The text says why."""


@dataclass(frozen=True, slots=True)
class Fault:
    """An object to apply. remark: in what it differs from the scenario; "" for in nothing."""

    manifest: Object
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Translation:
    """What can be said in Chaos Mesh, and what cannot, a sentence each."""

    faults: tuple[Fault, ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """Where the clients of a run are. clients: N. clients_each: of a pod; the last may have fewer. namespace: theirs
    and the server's."""

    clients: int
    clients_each: int
    namespace: str

    @property
    def count(self) -> int:
        return ceil(self.clients / self.clients_each)

    def of(self, clients: frozenset[int] | None) -> tuple[int, ...] | None:
        """Indices of the pods of these clients; None for all. Raises `_CannotSayError` where others share them."""
        if clients is None or len(clients) == self.clients:
            return None
        found = sorted({client_id // self.clients_each for client_id in clients})
        for index in found:
            hosted = range(index * self.clients_each, min((index + 1) * self.clients_each, self.clients))
            strangers = [client_id for client_id in hosted if client_id not in clients]
            if strangers:
                raise _CannotSayError(
                    f"client {strangers[0]} is in pod {index}, too, and a pod's clients cannot be told apart"
                )
        return tuple(found)

    def selector(self, indices: Sequence[int] | None = None) -> Object:
        """Of the clients' pods; indices: only those."""
        chosen = self._labelled("client")
        if indices is not None:
            values = [str(index) for index in indices]
            chosen["expressionSelectors"] = [{"key": INDEX_LABEL, "operator": "In", "values": values}]
        return {"selector": chosen, "mode": "all"}

    def server(self) -> Object:
        return {"selector": self._labelled("server"), "mode": "all"}

    def _labelled(self, component: str) -> Object:
        labels = {"app.kubernetes.io/name": "unstale", "app.kubernetes.io/component": component}
        return {"namespaces": [self.namespace], "labelSelectors": labels}


@dataclass(slots=True)
class _Experiment:
    """A fault without its times. kind: NetworkChaos or PodChaos. which: tells those of one toxic apart."""

    kind: str
    spec: Object
    remarks: list[str]
    which: str = ""


def translated(conditions: Conditions, pods: Pods) -> Translation:
    """What a scenario, settled, means for pods."""
    faults: list[Fault] = []
    left_out = []
    taken: set[str] = set()
    for applied in conditions.toxics:
        try:
            for experiment in _experiments(applied, pods):
                name = unused(_name(f"{applied.toxic.name} {experiment.which}"), taken)
                taken.add(name)
                faults.append(_timed(name, experiment, applied.toxic, pods.namespace))
        except _CannotSayError as why:
            left_out.append(f"toxic {applied.toxic.name} ({applied.toxic.type}): {why}")
    if conditions.devices:
        left_out.append("devices: clients play them themselves, when they are told of the scenario")
    if conditions.stale_rounds:
        left_out.append("stale_rounds: the server plays them itself, when it is told of the scenario")
    return Translation(tuple(faults), tuple(left_out))


def _experiments(applied: Applied, pods: Pods) -> Iterator[_Experiment]:
    toxic = applied.toxic
    if toxic.type in _HIDDEN:
        raise _CannotSayError(_HIDDEN[toxic.type])
    if toxic.messages is not None:
        raise _CannotSayError("it knows no messages, and this is about some of them")
    if toxic.toxicity < 1 and not isinstance(toxic, Drop):
        raise _CannotSayError(f"it cannot touch a share of {toxic.toxicity:g}, only everything")
    indices = pods.of(applied.clients)
    match toxic:
        case Latency():
            yield from _delays(toxic, pods, indices)
        case Drop():
            yield from _losses(toxic, pods, indices)
        case Blackout():
            yield _partition(toxic, pods, indices)
        case Bandwidth():
            yield from _rates(toxic, pods, indices)
        case Dropout():
            yield _failures(toxic, pods, indices)
        case _:
            raise _CannotSayError("it has no such fault")


# --- one toxic each ---


def _delays(toxic: Latency, pods: Pods, indices: Sequence[int] | None) -> Iterator[_Experiment]:
    latency_s, jitter_s, remarks = _normal_form(toxic.delay)
    delay = {"latency": duration(latency_s), "jitter": duration(jitter_s), "correlation": "0"}
    return _sent("delay", {"delay": delay}, toxic, pods, indices, remarks)


def _normal_form(delay: Delay) -> tuple[float, float, list[str]]:
    """Mean and half width of an even distribution, seconds, which is what netem draws from; and remarks."""
    match delay:
        case Constant():
            return delay.value_s, 0.0, []
        case Uniform():
            return (delay.low_s + delay.high_s) / 2, (delay.high_s - delay.low_s) / 2, []
        case Normal():
            remark = "delays are spread evenly, with the mean and the deviation of the normal ones"
            return delay.mean_s, sqrt(3) * delay.deviation_s, [remark] if delay.deviation_s else []
        case _:
            raise _CannotSayError(f"its delays are spread evenly, and cannot be {delay.distribution}")


def _losses(toxic: Drop, pods: Pods, indices: Sequence[int] | None) -> Iterator[_Experiment]:
    remark = "packets are lost, not messages: TCP sends them again, so everything comes, some of it late"
    loss = {"loss": f"{100 * toxic.toxicity:g}", "correlation": "0"}
    return _sent("loss", {"loss": loss}, toxic, pods, indices, [remark])


def _partition(toxic: Blackout, pods: Pods, indices: Sequence[int] | None) -> _Experiment:
    spec = {
        "action": "partition",
        **pods.server(),
        "direction": _SEEN_BY_THE_SERVER[toxic.direction],
        "target": pods.selector(indices),
    }
    remark = "messages are not lost: TCP sends them when the blackout is over"
    return _Experiment("NetworkChaos", spec, [remark] if toxic.layer == "message" else [])


def _rates(toxic: Bandwidth, pods: Pods, indices: Sequence[int] | None) -> Iterator[_Experiment]:
    """Down, the server's pod sends, and a line to each pod needs an object of its own."""
    each = pods.clients_each
    rate = {
        "rate": f"{max(1, round(toxic.bytes_per_s * each))}bps",  # there, bps are bytes a second
        "limit": QUEUE_BYTES,
        "buffer": BURST_BYTES,
    }
    remarks = [f"the {each} clients of a pod share a line of {each} times the rate"] if each > 1 else []
    if toxic.direction != "down":
        up = toxic.model_copy(update={"direction": "up"})
        yield from _sent("bandwidth", {"bandwidth": rate}, up, pods, indices, remarks)
    if toxic.direction != "up":
        down = toxic.model_copy(update={"direction": "down"})
        for index in range(pods.count) if indices is None else indices:
            yield from _sent("bandwidth", {"bandwidth": rate}, down, pods, [index], remarks, f"down {index}")


def _failures(toxic: Dropout, pods: Pods, indices: Sequence[int] | None) -> _Experiment:
    if toxic.by_rounds:
        raise _CannotSayError("it knows no rounds")
    if toxic.on_s is None or toxic.off_s is None:
        raise _CannotSayError("it cannot follow a trace")
    percent = round(100 * toxic.off_s / (toxic.on_s + toxic.off_s))
    if percent == 0:
        raise _CannotSayError("fewer than one pod in two hundred would be away")
    chosen = {**pods.selector(indices), "mode": "fixed-percent", "value": str(percent)}
    remarks = [
        f"{percent} % of the pods, drawn anew each time, are away for off_s; their processes end, and start again"
    ]
    return _Experiment("PodChaos", {"action": "pod-failure", **chosen}, remarks)


def _sent(
    action: str,
    settings: Mapping[str, Any],
    toxic: Toxic,
    pods: Pods,
    indices: Sequence[int] | None,
    remarks: list[str],
    which_down: str = "down",
) -> Iterator[_Experiment]:
    """A fault of what clients send, what is sent to them, or both."""
    if toxic.direction != "down":
        spec = {"action": action, **pods.selector(indices), **settings}
        yield _Experiment("NetworkChaos", spec, remarks, "up")
    if toxic.direction != "up":
        spec = {"action": action, **pods.server(), **settings}
        if indices is not None:
            spec |= {"direction": "to", "target": pods.selector(indices)}
        yield _Experiment("NetworkChaos", spec, remarks, which_down)


# --- times ---


def _timed(name: str, experiment: _Experiment, toxic: Toxic, namespace: str) -> Fault:
    """As it is, for a while, after a while, or again and again; times count from when it is applied."""
    kind, spec, remarks = experiment.kind, experiment.spec, experiment.remarks
    lasts_s = None if toxic.end_s is None else toxic.end_s - toxic.start_s
    embedded = kind[0].lower() + kind[1:]
    every_s = None
    if isinstance(toxic, Dropout):
        every_s = lasts_s = toxic.off_s
    elif isinstance(toxic, Blackout):
        every_s = toxic.every_s
    if every_s is not None:
        remarks = [*remarks, f"the first begins {every_s:g} s after it is applied"]
        if isinstance(toxic, Dropout) and (toxic.start_s or toxic.end_s is not None):
            remarks.append("it has no start and no end")
        assert lasts_s is not None
        again = {
            "schedule": f"@every {max(1, round(every_s))}s",  # it knows whole seconds
            "concurrencyPolicy": "Allow" if isinstance(toxic, Dropout) else "Forbid",
            "historyLimit": 2,
            "type": kind,
            embedded: {**spec, "duration": duration(lasts_s)},
        }
        return Fault(_object("Schedule", name, again, namespace), "; ".join(remarks))
    if toxic.start_s:
        last = {} if lasts_s is None else {"deadline": duration(lasts_s)}
        flow = {
            "entry": "all",
            "templates": [
                {"name": "all", "templateType": "Serial", "children": ["before", "fault"]},
                {"name": "before", "templateType": "Suspend", "deadline": duration(toxic.start_s)},
                {"name": "fault", "templateType": kind, **last, embedded: spec},
            ],
        }
        return Fault(_object("Workflow", name, flow, namespace), "; ".join(remarks))
    if lasts_s is not None:
        spec = {**spec, "duration": duration(lasts_s)}
    return Fault(_object(kind, name, spec, namespace), "; ".join(remarks))


def duration(seconds: float) -> str:
    """As Go reads it, to the microsecond: `60s`, `1.5ms`."""
    if seconds == round(seconds):
        return f"{seconds:.0f}s"
    return f"{seconds * 1000:.3f}".rstrip("0").rstrip(".") + "ms"


def _object(kind: str, name: str, spec: Object, namespace: str) -> Object:
    metadata = {
        "name": name,
        "namespace": namespace,
        "labels": {"app.kubernetes.io/name": "unstale", "app.kubernetes.io/component": "chaos"},
    }
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}


def _name(text: str) -> str:
    """Letters, digits and dashes: what Kubernetes takes as a name."""
    plain = re.sub(r"[^a-z0-9]+", "-", f"unstale {text}".lower())
    return plain[:NAME_MAX].strip("-")
