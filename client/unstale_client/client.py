"""`join`: take part in a run with a training loop of your own."""

import logging
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self, SupportsFloat

import numpy as np

from unstale_client import arguments, vectors
from unstale_client.addresses import is_host_and_port, is_loopback
from unstale_client.errors import UserError
from unstale_client.handover import Handover
from unstale_client.jobs import Job, ReceivedModel
from unstale_client.loop import ClientLoop, Observer
from unstale_client.net.keys import Identity, client_identity
from unstale_client.outbox import Outbox
from unstale_client.parameters import Array, Tensors
from unstale_client.setting_names import SettingNames
from unstale_proto import encodings, limits
from unstale_proto.encodings import Vector
from unstale_proto.errors import Reason, RemoteContractError
from unstale_proto.messages import Ack, Message, Update

log = logging.getLogger("unstale.client")

HEARTBEAT_S = 2.0  # of the connection; the server sets that of the client
LINGER_S = 2.0  # time to deliver messages at the end
PATIENCE_S_MAX = limits.SECONDS_MAX

ARGUMENTS = SettingNames(
    server="address",
    key="key",
    server_key="server_key",
    directory="state_dir",
    patience_s="patience_s",
    no_patience="patience_s is None",
    some_patience="patience_s=60",
    own_ids="a client_id of its own",
)


def join(
    address: str,
    *,
    client_id: int,
    key: str | Path | None = None,
    server_key: str | Path | None = None,
    state_dir: str | Path | None = None,
    patience_s: float | None = None,
    insecure: bool = False,
) -> "Client":
    """Take part in a run as one client. Use the result as a context manager, and iterate over it for tasks.

    Args:
        address: Of the server, `tcp://HOST:PORT`. The server may start later and restart.
        client_id: From 0 to the number of clients of the run - 1; each process needs another one.
        key: File NAME.key_secret of `unstale keys`; None for plain text.
        server_key: File NAME.key of the server, if `key` does not contain it.
        state_dir: Folder that keeps updates until the server has acknowledged them, across crashes of this process.
            Processes may share it. None keeps them in memory.
        patience_s: Time without a message from the server after which the iteration raises UserError; None for ever.
        insecure: Allow plain text to another machine.

    Raises:
        UserError: An argument or a file is invalid.
    """
    _check_address(address)
    number = arguments.index(client_id, "client_id", 0, limits.CLIENTS_MAX - 1)
    if patience_s is not None and not 0 < arguments.number(patience_s, "patience_s") <= PATIENCE_S_MAX:
        raise UserError(f"patience_s is {patience_s!r}, expected seconds up to {PATIENCE_S_MAX:g}, or None")
    own, of_server = (None if file is None else str(file) for file in (key, server_key))
    identity = client_identity(own, of_server, ARGUMENTS)
    if identity is None and not insecure and not is_loopback(address):
        raise UserError(
            f"address is {address!r}, on another machine, expected key too, or insecure=True for plain text"
        )
    return Client(address, number, identity, None if state_dir is None else Path(state_dir), patience_s)


def _check_address(address: Any) -> None:
    if not (isinstance(address, str) and address.startswith("tcp://") and is_host_and_port(address[6:])):
        raise UserError(f"address is {address!r}, expected tcp://HOST:PORT")


class Client:
    """A client of a run, made by `join`. Iterating over it yields tasks until the run is finished.

    It reconnects, sends again and resumes by itself. A thread of its own exchanges messages while the caller trains.
    """

    def __init__(
        self, address: str, client_id: int, identity: Identity | None, state_dir: Path | None, patience_s: float | None
    ) -> None:
        self.client_id = client_id
        self._address = address
        self._identity = identity
        self._state_dir = state_dir
        self._patience_s = patience_s
        self._loop: ClientLoop | None = None
        self._error: BaseException | None = None  # ended the loop
        self._task: Task | None = None
        self._thread = threading.Thread(target=self._run, name="unstale-client", daemon=True)

    def __enter__(self) -> Self:
        """Connect. Raises UserError for a state_dir that cannot be used."""
        if self._loop is not None:
            raise UserError("a client can be entered once; call join again")
        outbox = None
        if self._state_dir is not None:
            outbox = Outbox(self._state_dir, self.client_id, 1, durable=False, names=ARGUMENTS)
        try:
            self._loop = self._new_loop(outbox)
        except BaseException:
            if outbox is not None:
                outbox.close()
            raise
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the run. The task at hand goes to another client, with the exception that ended the loop as the cause;
        an update without a verdict stays in state_dir.
        """
        assert self._loop is not None
        if isinstance(error, Exception) and self._task is not None and self._task.is_open:
            message = " ".join(f"the training loop: {type(error).__name__}: {error}".split())
            self._task._give_back(message, Reason.NON_FINITE, is_code_error=True)  # noqa: SLF001  (of this module)
        self._loop.stop()
        self._thread.join()
        if error is None:
            self._raise_error()

    def __iter__(self) -> Iterator["Task"]:
        return self

    def __next__(self) -> "Task":
        """Wait for a task. Raises UserError when the server refuses this client, ends the run or is silent too long."""
        if self._loop is None:
            raise UserError("the client is not connected; use `with join(...) as client: for task in client: ...`")
        if self._task is not None and self._task.is_open:
            log.warning("task %d: the loop continued without task.send or task.decline", self._task.number)
            self._task.decline("the training loop continued without an update")
        self._task = None
        while (job := self._handover.next_job()) is not None:
            self._task = self._made(job)
            if self._task is not None:
                return self._task
        self._thread.join()
        self._raise_error()
        raise StopIteration

    def _new_loop(self, outbox: Outbox | None) -> ClientLoop:
        return ClientLoop(
            server=self._address,
            client_ids=range(self.client_id, self.client_id + 1),
            worker=lambda post: self._handed(Handover(post, outbox)),
            heartbeat_s=HEARTBEAT_S,
            linger_s=LINGER_S,
            patience_s=self._patience_s,
            outbox=outbox,
            identity=self._identity,
            observer=_VerdictLog(),
            names=ARGUMENTS,
        )

    def _handed(self, handover: Handover) -> Handover:
        self._handover = handover
        return handover

    def _made(self, job: Job) -> "Task | None":
        if job.welcome.extra:
            raise UserError(
                f"clients of this run exchange a second vector, for {job.welcome.training.name}, which join does not "
                "support; choose another training.name or policy on the server"
            )
        try:
            return Task(job, self._handover, self._state_dir)
        except RemoteContractError as error:
            log.warning("the model of task %d cannot be decoded: %s", job.task.number, error)
            self._handover.give_back(job, f"the model cannot be decoded: {error}", Reason.NON_FINITE)
            return None

    def _run(self) -> None:
        assert self._loop is not None
        try:
            self._loop.run()
        except BaseException as error:  # noqa: BLE001  (raised in the user's thread)
            self._error = error
            self._handover.close()

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error


class Task:
    """A task: train from `parameters`, then call `send`, `send_delta` or `decline`, which release the model.

    Attributes:
        number: Count of the client's earlier tasks.
        version: Of the model.
        learning_rate: Of each local step, as the server schedules it.
        settings: `client_settings` of the server, numbers and texts by name.
        parameters: By name, the parameters of the model, float32 and read-only; copy an array to change it.
        buffers: By name, the float buffers of the model, such as running means; likewise.
    """

    def __init__(self, job: Job, handover: Handover, folder: Path | None = None) -> None:
        """folder: for large vectors; None for memory. Raises RemoteContractError for a model that cannot be decoded."""
        welcome, task = job.welcome, job.task
        self.number = task.number
        self.version = task.version
        self.learning_rate = task.learning_rate
        self.settings: Mapping[str, float | int | str] = MappingProxyType(dict(welcome.settings or {}))
        self._parameters = Tensors(welcome.tensors, "task.parameters")
        self._buffers = Tensors(welcome.buffers or (), "task.buffers")
        d = self._parameters.numbers
        base_D = job.model.vector(encodings.of_task(welcome, task), folder)
        self._base_d, self._buffers_b = base_D[:d], base_D[d:]
        self.parameters: Mapping[str, Array] = self._parameters.views(self._base_d)
        self.buffers: Mapping[str, Array] = self._buffers.views(self._buffers_b)
        self._job = _without_model(job)
        self._handover, self._folder = handover, folder
        self.is_open = True

    @property
    def is_wanted(self) -> bool:
        """Whether the server still waits for an update of this task."""
        return self.is_open and self._job.is_wanted()

    def send(
        self,
        weights: Mapping[str, Any],
        *,
        num_examples: int,
        loss: float,
        steps: int = 1,
        buffers: Mapping[str, Any] | None = None,
        metrics: Mapping[str, SupportsFloat] | None = None,
    ) -> None:
        """Send the trained parameters. They are stored and sent again until the server acknowledges them.

        An update of a task that the server has taken back is dropped.

        Args:
            weights: By name, all parameters after the training: arrays of the shapes in `parameters`, float32.
            num_examples: Examples of this client.
            loss: Mean training loss.
            steps: Optimiser steps.
            buffers: By name, all buffers after the training; None for no change.
            metrics: Further results by name, which the server averages over the clients; finite, at most 32.

        Raises:
            UserError: An argument is invalid. The task stays open, so that another call may follow.
        """
        self._check_open("task.send")
        vector_d = self._vector(weights, "weights", self._base_d)
        self._finish(vector_d, "weights", num_examples, loss, steps, buffers, metrics)

    def send_delta(
        self,
        delta: Mapping[str, Any],
        *,
        num_examples: int,
        loss: float,
        steps: int = 1,
        buffers: Mapping[str, Any] | None = None,
        metrics: Mapping[str, SupportsFloat] | None = None,
    ) -> None:
        """Send the update itself: by name, parameters before the training minus parameters after it. Else as `send`."""
        self._check_open("task.send_delta")
        vector_d = self._vector(delta, "delta")
        self._finish(vector_d, "delta", num_examples, loss, steps, buffers, metrics)

    def _vector(self, arrays: Mapping[str, Any], argument: str, base_d: "Vector | None" = None) -> Vector:
        """The vector that is sent. base_d: [d] float32, from which the arrays are subtracted; None for a delta."""
        rate = np.float32(self._job.task.learning_rate) if self._is_gradient else None

        def change(block: Vector, position: int) -> None:
            if base_d is not None:
                np.subtract(base_d[position : position + len(block)], block, out=block)
            if rate is not None:
                np.divide(block, rate, out=block)

        return self._parameters.vector(arrays, argument, self._folder, change)

    @property
    def _is_gradient(self) -> bool:
        """Whether the run's updates are gradients."""
        return self._job.welcome.training.name == "gradient"

    def decline(self, why: str = "") -> None:
        """Skip this task. The server gives it to another client, and this one a later task."""
        self._check_open("task.decline")
        self._give_back(str(why), Reason.UNAVAILABLE)

    def _give_back(self, message: str, reason: Reason, *, is_code_error: bool = False) -> None:
        self._release()
        self._handover.give_back(self._job, message[: limits.TEXT_MAX], reason, is_code_error=is_code_error)

    def _finish(
        self,
        vector_d: Vector,
        argument: str,
        num_examples: int,
        loss: float,
        steps: int,
        buffers: Mapping[str, Any] | None,
        metrics: Mapping[str, SupportsFloat] | None,
    ) -> None:
        job, task = self._job, self._job.task
        examples = arguments.index(num_examples, "num_examples", 1, limits.INTEGER_MAX)
        mean_loss = arguments.number(loss, "loss")
        if not abs(mean_loss) <= limits.LOSS_MAX:
            raise UserError(
                f"loss is {loss!r}, expected a finite number; call task.decline to skip a task whose training diverged"
            )
        named = arguments.metrics(metrics)
        if not (self._is_gradient or vector_d.any()):
            raise UserError(f"{argument} changes no parameter, expected a trained model; call task.decline to skip it")
        parts = [vector_d, *self._sent_buffers(buffers)]
        update = Update(
            task_id=task.task_id,
            base_version=task.version,
            kind="gradient" if self._is_gradient else "delta",
            num_examples=examples,
            steps=arguments.index(steps, "steps", 1, limits.INTEGER_MAX),
            loss=mean_loss,
            learning_rate=task.learning_rate,
            signature=task.signature,
            payload_bytes=sum(part.nbytes for part in parts),
            metrics=named or None,
        )
        if not self._handover.send(job, update, parts):
            log.info("task %d: the server does not wait for its update any more", self.number)
        self._release()

    def _release(self) -> None:
        """End the task, and free its model."""
        self.is_open = False
        self.parameters = self.buffers = MappingProxyType({})
        self._base_d = self._buffers_b = np.empty(0, vectors.FLOAT)

    def _sent_buffers(self, buffers: Mapping[str, Any] | None) -> list[Vector]:
        """The vector of buffers, if the model has any. buffers: None for those of the task."""
        buffers_b = self._buffers_b if buffers is None else self._buffers.vector(buffers, "buffers")
        return [buffers_b] if self._buffers.numbers else []

    def _check_open(self, call: str) -> None:
        if not self.is_open:
            raise UserError(f"{call}: task {self.number} is done already; iterate over the client for the next one")


class _VerdictLog(Observer):
    """Logs rejected updates, whose cause is often an argument of `Task.send`."""

    def received(self, client_id: int, message: Message, payload_bytes: int) -> None:  # noqa: ARG002  (as inherited)
        if isinstance(message, Ack) and message.outcome == "rejected":
            log.warning(
                "client %d: the server rejects the update of task %d: %s", client_id, message.task_id, message.reason
            )


def _without_model(job: Job) -> Job:
    """The job without the received bytes, which are decoded."""
    return Job(
        client_id=job.client_id,
        welcome=job.welcome,
        task=job.task,
        model=ReceivedModel(()),
        is_wanted=job.is_wanted,
        received_s=job.received_s,
    )
