"""Every metric of the server, of clients and of the injector: name, kind, unit, help, labels. Dashboards, rules,
documents and tests are held against it.

Names follow the Prometheus conventions: base units, `_total` on counters. Every label has a closed set of values, so no
client id, task id or version is one.
"""

from dataclasses import dataclass
from typing import Literal

_SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1, 2.5, 5, 10, 30, 60, 300, 1800, 7200, 28800),  # rounds may take hours
)
# With a round for each update, staleness is the number of clients that work.
_ROUNDS = (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 987, 2584, 6765, 17711)
_NORMS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000, 10000, 100000)
_WEIGHTS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric. buckets: upper bounds of a histogram, in the unit of the name."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def bounds(self) -> tuple[str, ...]:
        """The bounds of all buckets as a scrape writes them, with that of the last one, which takes what is more."""
        return (*(str(float(bound)) for bound in self.buckets), "+Inf")


# --- of every process ---

BUILD_INFO = Metric(
    name="unstale_build_info",
    kind="gauge",
    help="1, labelled with the versions of unstale, Python and PyTorch.",
    labels=("version", "python", "torch"),
)

# --- of the server ---

RUN_INFO = Metric(
    name="unstale_run_info",
    kind="gauge",
    help="1, labelled with id of the run, policy, compensator, trigger, selector, model, data set, local training "
    "and device.",
    labels=("run", "policy", "compensator", "trigger", "selector", "model", "data", "training", "device"),
)
RUN_ROUNDS = Metric(name="unstale_run_rounds", kind="gauge", help="Rounds of the run, which is its last version.")
ROUND_DURATION = Metric(
    name="unstale_round_duration_seconds",
    kind="histogram",
    help="Time from one version of the global model to the next.",
    buckets=_SECONDS,
)
ROUND_PHASE_DURATION = Metric(
    name="unstale_round_phase_duration_seconds",
    kind="histogram",
    help="Time of a round by phase: wait (for updates), compensate (stale ones), aggregate, evaluate, checkpoint.",
    labels=("phase",),
    buckets=_SECONDS,
)
UPDATE_STALENESS = Metric(
    name="unstale_update_staleness_rounds",
    kind="histogram",
    help="Staleness of aggregated updates: versions between the base model and the aggregation; 0 is fresh.",
    buckets=_ROUNDS,
)
ROUNDS_OVERFLOWED = Metric(
    name="unstale_rounds_overflowed_total",
    kind="counter",
    help="Rounds whose step exceeded float32 and was not applied.",
)
UPDATES_PENDING = Metric(
    name="unstale_updates_pending", kind="gauge", help="Accepted updates that wait for their round."
)
UPDATES = Metric(
    name="unstale_updates_total",
    kind="counter",
    help="Updates received, by outcome (accepted, duplicate, rejected) and, if rejected, by reason.",
    labels=("outcome", "reason"),
)
UPDATE_NORM = Metric(
    name="unstale_update_norm",
    kind="histogram",
    help="L2 norms of the vectors of all updates, of a delta divided by its learning rate, by vector: update, "
    "buffers, extra.",
    labels=("vector",),
    buckets=_NORMS,
)
UPDATE_NORM_BOUND = Metric(
    name="unstale_update_norm_bound",
    kind="gauge",
    help="Largest accepted norm at the last update, by vector; +Inf for no limit.",
    labels=("vector",),
)
UPDATE_BYTES = Metric(
    name="unstale_update_bytes_total",
    kind="counter",
    help="Encoded payload bytes: received are updates, sent are models.",
    labels=("direction",),
)
TRANSFERS = Metric(
    name="unstale_transfers",
    kind="gauge",
    help="Payloads that are sent in chunks: received are updates, sent are models; by state: active, waiting (for a "
    "turn).",
    labels=("direction", "state"),
)
TRANSFER_RESUMES = Metric(
    name="unstale_transfer_resumes_total",
    kind="counter",
    help="Transfers that continued after the loss of a connection or process.",
    labels=("direction",),
)
MESSAGES_REFUSED = Metric(
    name="unstale_messages_refused_total",
    kind="counter",
    help="Refused messages by reason. Each is answered with an error, rate-limited ones once a second.",
    labels=("reason",),
)
QUARANTINES = Metric(
    name="unstale_quarantines_total", kind="counter", help="Quarantines of clients after consecutive refusals."
)
HANDSHAKES_REFUSED = Metric(
    name="unstale_handshakes_refused_total",
    kind="counter",
    help="Refused connections by reason: unknown-key (not authorized, or revoked), wrong-server-key (of another "
    "server), no-key (plain text, or aborted).",
    labels=("reason",),
)
CONNECTIONS = Metric(
    name="unstale_connections",
    kind="gauge",
    help="Connections by state: client (owns a client id), stranger (before a hello, or after the client left).",
    labels=("state",),
)
CONNECTIONS_CUT = Metric(
    name="unstale_connections_cut_total",
    kind="counter",
    help="Connections that the server cut, by reason: too-many (strangers), no-hello (in time), message-too-long, "
    "too-many-frames (in a message), memory (limit of all connections).",
    labels=("reason",),
)
ADDRESSES_LIMITED = Metric(
    name="unstale_addresses_limited",
    kind="gauge",
    help="Addresses whose connection attempts are partly dropped, because too many of their connections ended "
    "without a hello.",
)
MODEL_VERSION = Metric(
    name="unstale_model_version", kind="gauge", help="Version of the global model: rounds applied so far."
)
TEST_ACCURACY = Metric(
    name="unstale_test_accuracy_ratio", kind="gauge", help="Test accuracy of the last evaluated version."
)
TEST_CLASS_ACCURACY = Metric(
    name="unstale_test_class_accuracy_ratio",
    kind="gauge",
    help="Test accuracy of the last evaluated version, by class.",
    labels=("class",),
)
TEST_LOSS = Metric(name="unstale_test_loss", kind="gauge", help="Mean cross-entropy on the test set, in nats.")
CLIENT_TEST_ACCURACY = Metric(
    name="unstale_client_test_accuracy_ratio",
    kind="gauge",
    help="Accuracy on the clients' own test examples, of each client's last evaluation: mean, std, and mean of the "
    "worst and best tenth of the clients.",
    labels=("statistic",),
)
CLIENTS = Metric(
    name="unstale_clients",
    kind="gauge",
    help="Clients by state: absent (never joined), waiting (no task), working, contributed (its update waits for "
    "the round), unavailable (declined its task, until the next version), lost (its lease expired), left (by a "
    "goodbye or into quarantine).",
    labels=("state",),
)
AGGREGATION_WEIGHT = Metric(
    name="unstale_aggregation_weight", kind="histogram", help="Weights of updates in their rounds.", buckets=_WEIGHTS
)
COMPENSATED_UPDATES = Metric(
    name="unstale_compensated_updates_total",
    kind="counter",
    help="Stale updates that were replaced by estimates, by method: first-order, gradient-inversion, or that of "
    "another compensator.",
    labels=("method",),
)
COMPENSATION_FALLBACKS = Metric(
    name="unstale_compensation_fallbacks_total",
    kind="counter",
    help="Stale updates with a cheaper compensation than configured, by reason: budget, memory (of the device), "
    "not-finite, no-base (its model is deleted), worker-lost.",
    labels=("reason",),
)
COMPENSATION_ERROR = Metric(
    name="unstale_compensation_error",
    kind="gauge",
    help="Mean distance of estimates from later measured updates, in the last round with some, by method (none is "
    "the stale update itself) and measure: l1 (of all parameters) or cosine (1 - cos).",
    labels=("method", "measure"),
)
INVERSION_ITERATIONS = Metric(
    name="unstale_inversion_iterations_total",
    kind="counter",
    help="Iterations of gradient inversion, each of one update, used in rounds.",
)
DEVICE_MEMORY = Metric(
    name="unstale_device_memory_bytes", kind="gauge", help="Memory of the learner on its accelerator; 0 on a CPU."
)
JOURNAL_COMMIT = Metric(
    name="unstale_journal_commit_seconds",
    kind="histogram",
    help="Time to make events durable before their acknowledgement; one commit covers many updates.",
    buckets=_SECONDS,
)
CHECKPOINTS_LEFT_OUT = Metric(
    name="unstale_checkpoints_left_out_total",
    kind="counter",
    help="Checkpoints that were skipped because the disk was full.",
)
RUN_DISK_FREE = Metric(
    name="unstale_run_disk_free_bytes",
    kind="gauge",
    help="Free bytes of the file system of the run's directory; nan without one.",
)
RUN_DISK = Metric(
    name="unstale_run_disk_bytes",
    kind="gauge",
    help="Bytes of the run's directory: events, updates, checkpoints, transfers; 0 without one.",
)

CATALOGUE: tuple[Metric, ...] = (
    BUILD_INFO,
    RUN_INFO,
    RUN_ROUNDS,
    ROUND_DURATION,
    ROUND_PHASE_DURATION,
    UPDATE_STALENESS,
    ROUNDS_OVERFLOWED,
    UPDATES_PENDING,
    UPDATES,
    UPDATE_NORM,
    UPDATE_NORM_BOUND,
    UPDATE_BYTES,
    TRANSFERS,
    TRANSFER_RESUMES,
    MESSAGES_REFUSED,
    QUARANTINES,
    HANDSHAKES_REFUSED,
    CONNECTIONS,
    CONNECTIONS_CUT,
    ADDRESSES_LIMITED,
    MODEL_VERSION,
    TEST_ACCURACY,
    TEST_CLASS_ACCURACY,
    TEST_LOSS,
    CLIENT_TEST_ACCURACY,
    CLIENTS,
    AGGREGATION_WEIGHT,
    COMPENSATED_UPDATES,
    COMPENSATION_FALLBACKS,
    COMPENSATION_ERROR,
    INVERSION_ITERATIONS,
    DEVICE_MEMORY,
    JOURNAL_COMMIT,
    CHECKPOINTS_LEFT_OUT,
    RUN_DISK,
    RUN_DISK_FREE,
)

# --- of a client process, which may host many clients ---

CLIENT_SESSIONS = Metric(
    name="unstale_client_sessions",
    kind="gauge",
    help="Hosted clients by state of their session: away (no connection), greeting (before the welcome), in, over.",
    labels=("state",),
)
CLIENT_WELCOMES = Metric(
    name="unstale_client_welcomes_total",
    kind="counter",
    help="Welcomes of hosted clients: the first, and one after each loss of the connection.",
)
CLIENT_TASKS = Metric(
    name="unstale_client_tasks_total",
    kind="counter",
    help="Tasks by outcome: trained, failed (without a valid update), superseded (a newer task or another run "
    "arrived during the training).",
    labels=("outcome",),
)
CLIENT_TRAINING = Metric(
    name="unstale_client_training_duration_seconds",
    kind="histogram",
    help="Computing time of a task: decoding the model, evaluation if requested, training, encoding.",
    buckets=_SECONDS,
)
CLIENT_UPDATES = Metric(
    name="unstale_client_updates_total",
    kind="counter",
    help="Answers of the server to updates, by outcome (accepted, duplicate, rejected) and, if rejected, by reason.",
    labels=("outcome", "reason"),
)
CLIENT_UPDATES_SENT = Metric(
    name="unstale_client_updates_sent_total", kind="counter", help="Updates sent or announced, with repetitions."
)
CLIENT_UPDATES_KEPT = Metric(
    name="unstale_client_updates_kept", kind="gauge", help="Updates without an acknowledgement."
)
CLIENT_ACKNOWLEDGE = Metric(
    name="unstale_client_acknowledge_duration_seconds",
    kind="histogram",
    help="Time from the first transmission of an update to the server's answer.",
    buckets=_SECONDS,
)
CLIENT_BYTES = Metric(
    name="unstale_client_payload_bytes_total",
    kind="counter",
    help="Payload bytes, as they were encoded: received are models, sent are updates.",
    labels=("direction",),
)

CLIENT_CATALOGUE: tuple[Metric, ...] = (
    BUILD_INFO,
    CLIENT_SESSIONS,
    CLIENT_WELCOMES,
    CLIENT_TASKS,
    CLIENT_TRAINING,
    CLIENT_UPDATES,
    CLIENT_UPDATES_SENT,
    CLIENT_UPDATES_KEPT,
    CLIENT_ACKNOWLEDGE,
    CLIENT_BYTES,
)

# --- of the injector ---

INJECTED_DELAY = Metric(
    name="unstale_injected_delay_seconds",
    kind="histogram",
    help="Simulated delays of forwarded messages; 0 without a delay.",
    buckets=_SECONDS,
)
INJECTED_FAULTS = Metric(
    name="unstale_injected_faults_total",
    kind="counter",
    help="Messages changed, delayed or dropped by toxics, by type; on the tcp layer pieces of bytes.",
    labels=("toxic",),
)
INJECTOR_MESSAGES_IN_FLIGHT = Metric(
    name="unstale_injector_in_flight_messages", kind="gauge", help="Messages in flight in the injector."
)
INJECTOR_BYTES_IN_FLIGHT = Metric(
    name="unstale_injector_in_flight_bytes", kind="gauge", help="Bytes in flight in the injector."
)
INJECTOR_CONNECTIONS = Metric(
    name="unstale_injector_connections",
    kind="gauge",
    help="Connections of clients through the injector, each with one of its own to the server.",
)
INJECTOR_REFUSED = Metric(
    name="unstale_injector_refused_total",
    kind="counter",
    help="What the injector refused for want of the right key: connections by unknown-key, wrong-server-key or no-key, "
    "messages by not-the-owner.",
    labels=("reason",),
)

INJECTOR_CATALOGUE: tuple[Metric, ...] = (
    BUILD_INFO,
    INJECTED_DELAY,
    INJECTED_FAULTS,
    INJECTOR_MESSAGES_IN_FLIGHT,
    INJECTOR_BYTES_IN_FLIGHT,
    INJECTOR_CONNECTIONS,
    INJECTOR_REFUSED,
)
