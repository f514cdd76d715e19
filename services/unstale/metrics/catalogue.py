"""Declares the metrics of server, clients and injector: name, kind, help, labels and buckets. Tests check that
dashboards, rules and documents agree with it.

Names follow the Prometheus conventions: base units, `_total` on counters. Every label has a closed set of values, so no
client id, task id or version is one; the names of metrics that users report are bounded in number.
"""

from dataclasses import dataclass
from typing import Literal

_SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1, 2.5, 5, 10, 30, 60, 300, 1800, 7200, 28800),  # rounds may take hours
)
# If each update is a round, staleness is about the number of clients that work.
_ROUNDS = (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 987, 2584, 6765, 17711)
_NORMS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000, 10000, 100000)
_WEIGHTS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. buckets: upper bounds of a histogram, in the unit of the name."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def bounds(self) -> tuple[str, ...]:
        """Upper bounds of all buckets as labels of a scrape; the last bucket has no bound."""
        return (*(str(float(bound)) for bound in self.buckets), "+Inf")


class Catalogue(list[Metric]):
    """The metrics of one kind of process, in order of declaration. text: the help of a metric."""

    def counter(self, name: str, text: str, *labels: str) -> Metric:
        return self._declared(Metric(name, "counter", text, labels))

    def gauge(self, name: str, text: str, *labels: str) -> Metric:
        return self._declared(Metric(name, "gauge", text, labels))

    def histogram(self, name: str, text: str, *labels: str, buckets: tuple[float, ...] = _SECONDS) -> Metric:
        return self._declared(Metric(name, "histogram", text, labels, buckets))

    def _declared(self, metric: Metric) -> Metric:
        self.append(metric)
        return metric


BUILD_INFO = Metric(
    "unstale_build_info",
    "gauge",
    "1, labelled with the versions of unstale, Python and PyTorch.",
    ("version", "python", "torch"),
)
"""Exported by every process."""

# --- metrics of the server ---

CATALOGUE = Catalogue([BUILD_INFO])
RUN_INFO = CATALOGUE.gauge(
    "unstale_run_info",
    "1, labelled with id of the run, policy, compensator, trigger, selector, model, data set, local training and "
    "device.",
    *("run", "policy", "compensator", "trigger", "selector", "model", "data", "training", "device"),
)
RUN_ROUNDS = CATALOGUE.gauge("unstale_run_rounds", "Rounds of the run: the number of its last version.")
ROUND_DURATION = CATALOGUE.histogram(
    "unstale_round_duration_seconds", "Time from one version of the global model to the next."
)
ROUND_PHASE_DURATION = CATALOGUE.histogram(
    "unstale_round_phase_duration_seconds",
    "Time of a round by phase: wait (for updates), compensate (stale ones), aggregate, evaluate, checkpoint.",
    "phase",
)
UPDATE_STALENESS = CATALOGUE.histogram(
    "unstale_update_staleness_rounds",
    "Staleness of aggregated updates: versions between the base model and the aggregation; 0 is fresh.",
    buckets=_ROUNDS,
)
ROUNDS_OVERFLOWED = CATALOGUE.counter(
    "unstale_rounds_overflowed_total", "Rounds whose step exceeded float32 and was not applied."
)
UPDATES_PENDING = CATALOGUE.gauge("unstale_updates_pending", "Accepted updates that wait for their round.")
UPDATES = CATALOGUE.counter(
    "unstale_updates_total",
    "Updates received, by outcome (accepted, duplicate, rejected) and, if rejected, by reason.",
    "outcome",
    "reason",
)
UPDATE_NORM = CATALOGUE.histogram(
    "unstale_update_norm",
    "L2 norms of the vectors of all updates, by vector: update (a delta is divided by its learning rate), buffers, "
    "extra.",
    "vector",
    buckets=_NORMS,
)
UPDATE_NORM_BOUND = CATALOGUE.gauge(
    "unstale_update_norm_bound", "Largest accepted norm at the last update, by vector; +Inf for no limit.", "vector"
)
UPDATE_BYTES = CATALOGUE.counter(
    "unstale_update_bytes_total", "Encoded payload bytes by direction: received (updates), sent (models).", "direction"
)
TRANSFERS = CATALOGUE.gauge(
    "unstale_transfers",
    "Payloads in chunks, by direction (received updates, sent models) and state: active, waiting (for a slot).",
    "direction",
    "state",
)
TRANSFER_RESUMES = CATALOGUE.counter(
    "unstale_transfer_resumes_total", "Transfers that continued after the loss of a connection or process.", "direction"
)
MESSAGES_REFUSED = CATALOGUE.counter(
    "unstale_messages_refused_total",
    "Refused messages by reason. Each is answered with an error, rate-limited ones once a second.",
    "reason",
)
TASKS_GIVEN_BACK = CATALOGUE.counter(
    "unstale_tasks_given_back_total",
    "Tasks that clients gave back, by reason: code-error (code of the client's user raised, or exceeded its time "
    "limit), non-finite (the training diverged), unavailable (the client skips the round), or another one of the wire.",
    "reason",
)
QUARANTINES = CATALOGUE.counter("unstale_quarantines_total", "Quarantines of clients after consecutive refusals.")
HANDSHAKES_REFUSED = CATALOGUE.counter(
    "unstale_handshakes_refused_total",
    "Refused connections by reason: unknown-key (not authorized, or revoked), wrong-server-key (of another server), "
    "no-key (plain text, or aborted).",
    "reason",
)
CONNECTIONS = CATALOGUE.gauge(
    "unstale_connections",
    "Connections by state: client (owns a client id), stranger (before a hello, or after the client left).",
    "state",
)
CONNECTIONS_CUT = CATALOGUE.counter(
    "unstale_connections_cut_total",
    "Connections that the server cut, by reason: too-many (strangers), no-hello (until its limit), message-too-long, "
    "too-many-frames (in a message), memory (limit of all connections).",
    "reason",
)
ADDRESSES_LIMITED = CATALOGUE.gauge(
    "unstale_addresses_limited",
    "Addresses whose connection attempts are partly dropped, because too many of their connections ended without a "
    "hello.",
)
GATEWAYS_ENDED = CATALOGUE.counter(
    "unstale_gateways_ended_total", "Gateway processes that ended during the run, and were started again."
)
TRACKER_FAILURES = CATALOGUE.counter(
    "unstale_tracker_failures_total", "Calls of a tracker that failed, and are repeated, by tracker.", "tracker"
)
MODEL_VERSION = CATALOGUE.gauge("unstale_model_version", "Version of the global model: rounds applied so far.")
TEST_ACCURACY = CATALOGUE.gauge("unstale_test_accuracy_ratio", "Test accuracy of the last evaluated version.")
TEST_CLASS_ACCURACY = CATALOGUE.gauge(
    "unstale_test_class_accuracy_ratio", "Test accuracy of the last evaluated version, by class.", "class"
)
TEST_LOSS = CATALOGUE.gauge("unstale_test_loss", "Mean cross-entropy on the test set, in nats.")
CLIENT_TEST_ACCURACY = CATALOGUE.gauge(
    "unstale_client_test_accuracy_ratio",
    "Accuracy on the clients' own test examples, of each client's last evaluation: mean, std, and mean of the worst "
    "and best tenth of the clients.",
    "statistic",
)
METRIC = CATALOGUE.gauge(
    "unstale_metric",
    "Metrics by name and split: central (test set of the server), clients (mean over the clients' last own "
    "evaluations), training (mean over the updates of the last round), policy (of policy and compensator after the "
    "last round). Means are weighted by examples, up to 5 times the median; of clients and training, names that at "
    "most a tenth of the clients report are left out. Accuracy and loss on the test set and accuracy on the clients' "
    "have metrics of their own.",
    "name",
    "split",
)
CLIENTS = CATALOGUE.gauge(
    "unstale_clients",
    "Clients by state: absent (never joined), waiting (no task), working, contributed (its update waits for the "
    "round), unavailable (declined its task, until the next version), lost (its lease expired), left (by a goodbye "
    "or into quarantine).",
    "state",
)
AGGREGATION_WEIGHT = CATALOGUE.histogram(
    "unstale_aggregation_weight", "Weights of updates in their rounds.", buckets=_WEIGHTS
)
COMPENSATED_UPDATES = CATALOGUE.counter(
    "unstale_compensated_updates_total",
    "Stale updates that were replaced by estimates, by method: first-order, gradient-inversion, or that of another "
    "compensator.",
    "method",
)
COMPENSATION_FALLBACKS = CATALOGUE.counter(
    "unstale_compensation_fallbacks_total",
    "Stale updates with a cheaper compensation than configured, by reason: budget, memory (of the device), "
    "not-finite, no-base (its model is deleted), worker-lost.",
    "reason",
)
COMPENSATION_ERROR = CATALOGUE.gauge(
    "unstale_compensation_error",
    "Mean distance of estimates from later measured updates, in the last round with a measurement, by method (none is "
    "the stale update itself) and measure: l1 (of all parameters) or cosine (1 - cos).",
    "method",
    "measure",
)
INVERSION_ITERATIONS = CATALOGUE.counter(
    "unstale_inversion_iterations_total", "Iterations of gradient inversion in rounds, summed over updates."
)
DEVICE_MEMORY = CATALOGUE.gauge("unstale_device_memory_bytes", "Memory of the learner on its accelerator; 0 on a CPU.")
JOURNAL_COMMIT = CATALOGUE.histogram(
    "unstale_journal_commit_seconds",
    "Time to make events durable before their acknowledgement; one commit covers many updates.",
)
CHECKPOINTS_LEFT_OUT = CATALOGUE.counter(
    "unstale_checkpoints_left_out_total", "Checkpoints that were skipped because the disk was full."
)
RUN_DISK = CATALOGUE.gauge(
    "unstale_run_disk_bytes", "Bytes of the run's directory: events, updates, checkpoints, transfers; 0 if not stored."
)
RUN_DISK_FREE = CATALOGUE.gauge(
    "unstale_run_disk_free_bytes", "Free bytes of the file system of the run's directory; nan if the run is not stored."
)

# --- metrics of a client process, which may host many clients ---

CLIENT_CATALOGUE = Catalogue([BUILD_INFO])
CLIENT_SESSIONS = CLIENT_CATALOGUE.gauge(
    "unstale_client_sessions",
    "Hosted clients by state of their session: away (no connection), greeting (before the welcome), in (after it), "
    "over.",
    "state",
)
CLIENT_WELCOMES = CLIENT_CATALOGUE.counter(
    "unstale_client_welcomes_total", "Welcomes of hosted clients: the first, and one after each loss of the connection."
)
CLIENT_TASKS = CLIENT_CATALOGUE.counter(
    "unstale_client_tasks_total",
    "Tasks by outcome: trained, declined (the client skips the round), code-error (code of the user raised, or "
    "exceeded its time limit), failed (without a valid update for another reason), superseded (a newer task or another "
    "run arrived during the training). Each task counts once.",
    "outcome",
)
CLIENT_TRAINING = CLIENT_CATALOGUE.histogram(
    "unstale_client_training_duration_seconds",
    "Computing time of a task: decoding the model, evaluation if requested, training, encoding.",
)
CLIENT_UPDATES = CLIENT_CATALOGUE.counter(
    "unstale_client_updates_total",
    "Answers of the server to updates, by outcome (accepted, duplicate, rejected) and, if rejected, by reason.",
    "outcome",
    "reason",
)
CLIENT_UPDATES_SENT = CLIENT_CATALOGUE.counter(
    "unstale_client_updates_sent_total", "Updates sent or announced, with repetitions."
)
CLIENT_UPDATES_KEPT = CLIENT_CATALOGUE.gauge("unstale_client_updates_kept", "Updates without an acknowledgement.")
CLIENT_ACKNOWLEDGE = CLIENT_CATALOGUE.histogram(
    "unstale_client_acknowledge_duration_seconds",
    "Time from the first transmission of an update to the server's answer.",
)
CLIENT_BYTES = CLIENT_CATALOGUE.counter(
    "unstale_client_payload_bytes_total",
    "Encoded payload bytes by direction: received (models), sent (updates).",
    "direction",
)

# --- metrics of the injector ---

INJECTOR_CATALOGUE = Catalogue([BUILD_INFO])
INJECTED_DELAY = INJECTOR_CATALOGUE.histogram(
    "unstale_injected_delay_seconds", "Simulated delays of forwarded messages; 0 without a delay."
)
INJECTED_FAULTS = INJECTOR_CATALOGUE.counter(
    "unstale_injected_faults_total",
    "Messages (pieces of the byte stream on the tcp layer) that toxics changed, delayed or dropped, by type.",
    "toxic",
)
INJECTOR_MESSAGES_IN_FLIGHT = INJECTOR_CATALOGUE.gauge(
    "unstale_injector_in_flight_messages", "Messages in flight in the injector."
)
INJECTOR_BYTES_IN_FLIGHT = INJECTOR_CATALOGUE.gauge(
    "unstale_injector_in_flight_bytes", "Bytes in flight in the injector."
)
INJECTOR_CONNECTIONS = INJECTOR_CATALOGUE.gauge(
    "unstale_injector_connections", "Connections of clients through the injector; for each it opens one to the server."
)
INJECTOR_REFUSED = INJECTOR_CATALOGUE.counter(
    "unstale_injector_refused_total",
    "Connections (unknown-key, wrong-server-key, no-key) and messages (not-the-owner) that the injector refused, by "
    "reason.",
    "reason",
)
