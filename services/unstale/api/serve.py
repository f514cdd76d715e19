"""`serve`: the server of a run, in this process."""

import threading
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Literal, Self, overload

from unstale.api.arguments import settings_of
from unstale.api.progress import Bar
from unstale.api.run import Run, read
from unstale.config import Settings
from unstale.config.metrics import main_metric
from unstale.config.workspace import make_workspace
from unstale.server.service import Server
from unstale.training import model_file
from unstale.training.app import App

CHECK_S = 1.0  # between looks at whether the run is over, where an interrupt took the message of its end


class Serving:
    """A server that runs in the background. A context manager, which stops it at its end.

    Attributes:
        address: For clients, `tcp://HOST:PORT`.
        http_address: Of the status page and the metrics; None for none.
    """

    def __init__(self, settings: Settings, progress: bool | None) -> None:
        self._settings = settings
        self._workspace = workspace = make_workspace(settings)
        main = main_metric(settings, workspace.main)
        self._bar = Bar("", settings.rounds, main, visible=progress)
        self._server = Server(settings, on_progress=self._bar.evaluated, observe=self._bar.observe, workspace=workspace)
        self.address, self.http_address = self._server.address, self._server.http_address
        http = "" if self.http_address is None else f", http://{self.http_address}/"
        self._bar.first = f"waits for clients at {self.address}{http}"
        self._error: BaseException | None = None
        self._run: Run | None = None
        # Not `Thread.join` or `Event.wait`: an interrupt inside them may leave their lock held.
        self._end: SimpleQueue[None] = SimpleQueue()
        self._is_over = False
        thread = threading.Thread(target=self._serve, name="serve", daemon=True)
        try:
            thread.start()
        except BaseException:
            self.stop()
            if thread.ident is not None:
                self._wait_for_end()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._wait_for_end()
        if error is None and self._error is not None:
            raise self._error

    def wait(self) -> Run:
        """Wait for the end of the run, and return it. Raises the error that ended it."""
        self._wait_for_end()
        if self._error is not None:
            raise self._error
        assert self._run is not None
        return self._run

    def stop(self) -> None:
        """End the run soon. A server with the same settings resumes it."""
        self._server.stop()

    def _wait_for_end(self) -> None:
        while not self._is_over:
            with suppress(Empty):
                self._end.get(timeout=CHECK_S)

    def _serve(self) -> None:
        try:
            with self._bar:
                outcome = self._server.run()
            self._server.save()
            sent = self._server.sent
            model = model_file.state(self._workspace.model, sent.model_d, sent.buffers_b)
            self._run = read(Path(self._settings.run.directory), model, outcome)
        except BaseException as error:  # noqa: BLE001  (raised by `wait`)
            self._error = error
        finally:
            self._is_over = True
            self._end.put(None)


@overload
def serve(
    app: App | str | None = None,
    *,
    clients: int,
    policy: object = ...,
    rounds: int = ...,
    directory: str | Path | None = ...,
    background: Literal[False] = ...,
    progress: bool | None = ...,
    **keys: Any,
) -> Run: ...
@overload
def serve(
    app: App | str | None = None,
    *,
    clients: int,
    policy: object = ...,
    rounds: int = ...,
    directory: str | Path | None = ...,
    background: Literal[True],
    progress: bool | None = ...,
    **keys: Any,
) -> Serving: ...
def serve(
    app: App | str | None = None,
    *,
    clients: int,
    policy: object = "fedhist",
    rounds: int = 200,
    directory: str | Path | None = None,
    background: bool = False,
    progress: bool | None = None,
    **keys: Any,
) -> Run | Serving:
    """Serve a run in this process until its end, as `unstale server` does. An interrupt stops the server.

    Args:
        app: Own model, data and training, or their `module:name`; None for the built-in training.
        clients: Number of clients.
        policy: Aggregation policy.
        rounds: Number of rounds.
        directory: Directory of the run, from which the same call resumes it; None for `run.directory`.
        background: Return at once, with the server's address.
        progress: Whether to show a progress bar; None for one in terminals and notebooks, but not in the background.
        keys: Keys of the configuration, or sections with a mapping or the name of their part.

    Raises:
        UserError: An argument is invalid, or a part cannot be made.
    """
    arguments = {"clients": clients, "policy": policy, "rounds": rounds, **keys}
    if directory is not None:
        arguments["run.directory"] = directory
    settings = settings_of(app, arguments)
    settings = settings.model_copy(update={"server": settings.server.model_copy(update={"stay": False})})
    serving = Serving(settings, False if background and progress is None else progress)
    if background:
        return serving
    with serving:
        return serving.wait()
