"""Shows a run in MLflow."""

from itertools import islice
from typing import Any

from typing_extensions import override

from unstale.trackers.library import library
from unstale.trackers.tracker import Evaluation, Finish, Round, TrackedRun, Tracker

RUN_ID = "unstale.run_id"
METRICS_MAX = 1000  # here and below: limits of MLflow for one request
PARAMS_MAX = 100
PARAM_MAX = 6000  # characters


class MlflowTracker(Tracker):
    """Writes metrics with the version as step, and times of the run after the start of MLflow's run.

    A server that resumes the run continues the run of MLflow that has its id as a tag, after the last steps there.
    """

    def __init__(self, uri: str | None = None, experiment: str = "unstale") -> None:
        """uri: of a server or database, None for the default of MLflow, which MLFLOW_TRACKING_URI changes."""
        mlflow = library("mlflow", "mlflow")
        self._make_client, self._entities = mlflow.MlflowClient, mlflow.entities
        self._uri, self._experiment = uri, experiment
        self._client: Any = None
        self._id: str | None = None  # of MLflow's run
        self._start_ms = 0
        self._points: list[Round | Evaluation] = []  # that are not sent
        self._last: dict[str, int] | None = None  # step of the last value of each metric; None: not known

    @override
    def on_start(self, run: TrackedRun) -> None:
        self._client = client = self._make_client(tracking_uri=self._uri)
        if self._id is None:
            self._id = self._find_or_create(run)
        run_there = client.get_run(self._id)
        client.update_run(self._id, status="RUNNING")
        self._start_ms = run_there.info.start_time
        texts = {key: str(value)[:PARAM_MAX] for key, value in run.settings.items() if key not in run_there.data.params}
        params = iter([self._entities.Param(key, text) for key, text in texts.items()])
        while batch := list(islice(params, PARAMS_MAX)):
            client.log_batch(self._id, params=batch)

    def _find_or_create(self, run: TrackedRun) -> str:
        """The id of MLflow's run."""
        known = self._client.get_experiment_by_name(self._experiment)
        experiment = self._client.create_experiment(self._experiment) if known is None else known.experiment_id
        tags = {} if run.run_id is None else {RUN_ID: run.run_id}
        query = " and ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())
        runs = self._client.search_runs([experiment], query) if tags else []
        chosen = runs[0] if runs else self._client.create_run(experiment, run_name=run.name, tags=tags)
        return str(chosen.info.run_id)

    @override
    def on_round(self, applied: Round) -> None:
        self._points.append(applied)

    @override
    def on_evaluation(self, evaluation: Evaluation) -> None:
        self._points.append(evaluation)

    @override
    def flush(self) -> None:
        last = self._stored() if self._last is None else self._last
        self._last = None  # if a request fails, it may have arrived
        metrics = iter(
            [
                self._entities.Metric(name, value, self._start_ms + round(1000 * point.elapsed_s), point.version)
                for point in self._points
                for name, value in ((_accepted(given), value) for given, value in point.numbers.items())
                if point.version > last.get(name, -1)
            ]
        )
        while batch := list(islice(metrics, METRICS_MAX)):
            self._client.log_batch(self._id, metrics=batch)
        self._points.clear()
        self._last = last

    def _stored(self) -> dict[str, int]:
        """The last step of each metric."""
        names = self._client.get_run(self._id).data.metrics
        return {name: max(one.step for one in self._client.get_metric_history(self._id, name)) for name in names}

    @override
    def on_finish(self, finish: Finish) -> None:
        self._client.set_terminated(self._id, "KILLED" if finish.reason == "shutdown" else "FINISHED")
        self._id = self._last = None


def _accepted(name: str) -> str:
    """The name without its parts `.`, `..` and "", with which MLflow refuses the whole request."""
    return "/".join(part for part in name.split("/") if part not in ("", ".", ".."))
