"""Network traffic, refused messages, and the journal on disk."""

from monitoring.dashboards.dashboard import CLIENT, JOB, RUN, SERVER, Dashboard, Row
from monitoring.dashboards.expressions import latest, of, quantile, rate
from monitoring.dashboards.panels import Query, Stat, Steps, TimeSeries
from monitoring.dashboards.shared import (
    DIRECTIONS,
    LOW_DISK,
    OUTCOMES,
    disk,
    over_time,
    quantiles,
    rates_by,
    time_until_acknowledged,
    updates_by_outcome,
    updates_rejected,
)
from unstale.metrics import catalogue

COMMITS = rate(catalogue.JOURNAL_COMMIT, part="count")

NOW = (
    Stat(
        title="Updates received",
        description="Encoded payload of updates.",
        unit="binBps",
        queries=(Query(rate(catalogue.UPDATE_BYTES, direction="received")),),
    ),
    Stat(
        title="Models sent",
        description="Encoded payload of models.",
        unit="binBps",
        queries=(Query(rate(catalogue.UPDATE_BYTES, direction="sent")),),
    ),
    updates_rejected(),
    Stat(
        title="Messages refused",
        description="Messages that the server answered with an error.",
        unit="count:messages/s",
        queries=(Query(f"{rate(catalogue.MESSAGES_REFUSED)} or vector(0)"),),
        steps=Steps("green", ((0.1, "yellow"), (10, "red"))),
        decimals=1,
    ),
    Stat(
        title="Journal commit, 99th percentile",
        description="Duration of a commit. Acknowledgements wait for it, so a slow disk slows down every client.",
        unit="s",
        queries=(Query(quantile(0.99, catalogue.JOURNAL_COMMIT)),),
        steps=Steps("green", ((0.1, "yellow"), (0.5, "red"))),
    ),
    Stat(
        title="Disk free",
        description="Free space for the run directory. Below run.free_bytes_min the server refuses updates.",
        unit="bytes",
        queries=(Query(f"min({of(catalogue.RUN_DISK_FREE)})"),),
        steps=LOW_DISK,
    ),
)

PAYLOAD = (
    TimeSeries(
        title="Payload",
        description="Received: updates. Sent: models. The rate depends on the encodings and on the rate of tasks.",
        unit="binBps",
        queries=(Query(rate(catalogue.UPDATE_BYTES, "direction"), "{{direction}}"),),
        colours=DIRECTIONS,
    ),
    updates_by_outcome(),
)

REFUSED = (
    rates_by(
        catalogue.UPDATES,
        "reason",
        title="Rejected updates by reason",
        description="non-finite, norm-too-large: training diverged, or a hostile client. expired-task: a "
        "slow client. not-stored: a full disk. wrong-signature: another model.",
        width=8,
        things="updates",
        outcome="rejected",
    ),
    rates_by(
        catalogue.MESSAGES_REFUSED,
        "reason",
        title="Refused messages by reason",
        description="Invalid messages: malformed, of another protocol version, from a client without a "
        "hello, or above the rate limit.",
        width=8,
        things="messages",
    ),
    TimeSeries(
        title="Refused connections, quarantines, checkpoints, trackers",
        description="Connections without a valid key, by reason; clients in quarantine after consecutive "
        "refusals; checkpoints that failed because the disk was full; and calls of trackers that failed.",
        unit="count:refusals/s",
        queries=(
            Query(rate(catalogue.HANDSHAKES_REFUSED, "reason"), "{{reason}}"),
            Query(rate(catalogue.QUARANTINES), "quarantines"),
            Query(rate(catalogue.CHECKPOINTS_LEFT_OUT), "checkpoints left out"),
            Query(rate(catalogue.TRACKER_FAILURES, "tracker"), "tracker {{tracker}}"),
        ),
        colours={"quarantines": "red", "checkpoints left out": "orange"},
        width=8,
    ),
    TimeSeries(
        title="Connections",
        description="Connections of clients; strangers (without a hello, or whose client has left); "
        "addresses whose new connections are limited; and gateway processes that ended during the run.",
        unit="count:connections",
        queries=(
            Query(latest(catalogue.CONNECTIONS, "state"), "{{state}}"),
            Query(latest(catalogue.ADDRESSES_LIMITED), "addresses limited"),
            Query(latest(catalogue.GATEWAYS_ENDED), "gateways ended"),
        ),
        colours={"addresses limited": "red", "gateways ended": "orange"},
        width=8,
    ),
    rates_by(
        catalogue.CONNECTIONS_CUT,
        "reason",
        title="Cut connections by reason",
        description="Cut because of: too many strangers, no hello in time, a message above its limit, or "
        "too many unread bytes in total.",
        width=8,
        things="connections",
    ),
    rates_by(
        catalogue.TASKS_GIVEN_BACK,
        "reason",
        title="Tasks given back by reason",
        description="code-error: code of a client's user raised, or exceeded its time limit. non-finite: training "
        "diverged. unavailable: the client skips the round.",
        width=8,
        things="tasks",
    ),
)

JOURNAL = (
    over_time(
        catalogue.JOURNAL_COMMIT,
        title="Journal commits over time",
        description="Distribution of durations; brighter is more commits. A second band: the disk stalls.",
        unit="s",
    ),
    quantiles(
        catalogue.JOURNAL_COMMIT,
        title="Journal commits: median, 95th and 99th percentile",
        description="run.durability determines what a commit waits for.",
        unit="s",
        log=True,
    ),
    TimeSeries(
        title="Updates per commit",
        description="A commit stores all updates since the last commit. A busy server stores more updates per commit.",
        unit="count:updates",
        queries=(Query(f"{rate(catalogue.UPDATES, outcome='accepted')} / ({COMMITS} > 0)", "updates a commit"),),
        width=8,
    ),
    *disk(),
)

TRANSFERS = (
    TimeSeries(
        title="Transfers in chunks",
        description="Transfers of payloads above 4 MiB. If many wait, the link is saturated.",
        unit="count:transfers",
        queries=(Query(f"sum by (direction, state) ({of(catalogue.TRANSFERS)})", "{{direction}}, {{state}}"),),
        stacked=True,
        decimals=0,
    ),
    TimeSeries(
        title="Transfers resumed",
        description="Transfers that continued after the end of a connection or process.",
        unit="count:transfers/s",
        queries=(Query(rate(catalogue.TRANSFER_RESUMES, "direction"), "{{direction}}"),),
        colours=DIRECTIONS,
    ),
)

CLIENTS = (
    TimeSeries(
        title="Payload of client processes",
        description="Received: models. Sent: updates, including retransmissions.",
        unit="binBps",
        queries=(Query(rate(catalogue.CLIENT_BYTES, "direction"), "{{direction}}"),),
        colours=DIRECTIONS,
        width=8,
    ),
    TimeSeries(
        title="Transmissions per acknowledged update",
        description="1: no loss. Above 1: retransmissions.",
        unit="short",
        queries=(
            Query(
                f"{rate(catalogue.CLIENT_UPDATES_SENT)} / ({rate(catalogue.CLIENT_UPDATES)} > 0)", "sendings an update"
            ),
        ),
        decimals=2,
        width=8,
    ),
    rates_by(
        catalogue.CLIENT_UPDATES,
        "outcome",
        title="Answers to clients",
        description="Verdicts of the server on updates, counted by the clients.",
        colours=OUTCOMES,
        width=8,
        things="updates",
    ),
    TimeSeries(
        title="Welcomes",
        description="The first welcome of each client, and one after each reconnection.",
        unit="count:welcomes/s",
        queries=(Query(rate(catalogue.CLIENT_WELCOMES), "welcomes"),),
    ),
    time_until_acknowledged(),
)

WIRE = Dashboard(
    uid="unstale-wire",
    title="Unstale / Wire and journal",
    description="Network traffic, refused messages, and the journal on disk.",
    variables=(JOB, RUN, SERVER, CLIENT),
    subject=SERVER,
    rows=(
        Row("", NOW),
        Row("Payload", PAYLOAD),
        Row("Refused", REFUSED),
        Row("Journal", JOURNAL),
        Row("Large payloads", TRANSFERS, folded=True),
        Row("Client processes", CLIENTS, folded=True),
    ),
)
