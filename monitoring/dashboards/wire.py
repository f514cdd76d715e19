"""What goes over the network, what is refused, and whether the disk keeps up."""

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
        description="Payload that clients send, as it was encoded.",
        unit="binBps",
        queries=(Query(rate(catalogue.UPDATE_BYTES, direction="received")),),
    ),
    Stat(
        title="Models sent",
        description="Payload that the server sends, as it was encoded.",
        unit="binBps",
        queries=(Query(rate(catalogue.UPDATE_BYTES, direction="sent")),),
    ),
    updates_rejected(),
    Stat(
        title="Messages refused",
        description="Answered with an error instead of being handled.",
        unit="count:messages/s",
        queries=(Query(f"{rate(catalogue.MESSAGES_REFUSED)} or vector(0)"),),
        steps=Steps("green", ((0.1, "yellow"), (10, "red"))),
        decimals=1,
    ),
    Stat(
        title="Journal commit, 99 %",
        description="Until what happened is durable; no acknowledgement leaves before. A slow disk slows down every "
        "client.",
        unit="s",
        queries=(Query(quantile(0.99, catalogue.JOURNAL_COMMIT)),),
        steps=Steps("green", ((0.1, "yellow"), (0.5, "red"))),
    ),
    Stat(
        title="Disk free",
        description="Where the run is kept. Below run.free_bytes_min the server refuses updates rather than lose one.",
        unit="bytes",
        queries=(Query(f"min({of(catalogue.RUN_DISK_FREE)})"),),
        steps=LOW_DISK,
    ),
)

PAYLOAD = (
    TimeSeries(
        title="Payload",
        description="Received are updates, sent are models. The encodings of both decide it, and how often tasks are "
        "given.",
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
        description="non-finite and norm-too-large are training that diverged or somebody hostile; expired-task is a "
        "client that was too slow; not-stored a disk that is full; wrong-signature another model.",
        width=8,
        things="updates",
        outcome="rejected",
    ),
    rates_by(
        catalogue.MESSAGES_REFUSED,
        "reason",
        title="Refused messages by reason",
        description="What is no update, or not even a message: malformed, of another protocol, from a client that has "
        "not said hello or sends too fast.",
        width=8,
        things="messages",
    ),
    TimeSeries(
        title="Refused connections, quarantines, checkpoints",
        description="Connections without the right key, by reason; clients kept out for a while because they were "
        "refused too often in a row; and checkpoints that the disk had no room for.",
        unit="count:refusals/s",
        queries=(
            Query(rate(catalogue.HANDSHAKES_REFUSED, "reason"), "{{reason}}"),
            Query(rate(catalogue.QUARANTINES), "quarantines"),
            Query(rate(catalogue.CHECKPOINTS_LEFT_OUT), "checkpoints left out"),
        ),
        colours={"quarantines": "red", "checkpoints left out": "orange"},
        width=8,
    ),
    TimeSeries(
        title="Connections",
        description="Connections that speak for a client; strangers, which have said no hello yet or whose client has "
        "left; and addresses whose new connections are limited.",
        unit="count:connections",
        queries=(
            Query(latest(catalogue.CONNECTIONS, "state"), "{{state}}"),
            Query(latest(catalogue.ADDRESSES_LIMITED), "addresses limited"),
        ),
        colours={"addresses limited": "red"},
        width=12,
    ),
    rates_by(
        catalogue.CONNECTIONS_CUT,
        "reason",
        title="Cut connections by reason",
        description="Strangers over their cap, connections without a hello in time, messages over their bound, and the "
        "largest when all together hold too much.",
        width=12,
        things="connections",
    ),
)

JOURNAL = (
    over_time(
        catalogue.JOURNAL_COMMIT,
        title="Journal commits over time",
        description="How many took how long; the brighter, the more. A second band is a disk that stalls.",
        unit="s",
    ),
    quantiles(
        catalogue.JOURNAL_COMMIT,
        title="Journal commits: half, 95 % and 99 %",
        description="So long at most. run.durability says what a commit waits for.",
        unit="s",
        log=True,
    ),
    TimeSeries(
        title="Updates a commit",
        description="One commit makes all durable that came since the last. More a commit is how a busy server keeps "
        "up.",
        unit="count:updates",
        queries=(Query(f"{rate(catalogue.UPDATES, outcome='accepted')} / ({COMMITS} > 0)", "updates a commit"),),
        width=8,
    ),
    *disk(),
)

TRANSFERS = (
    TimeSeries(
        title="Transfers in chunks",
        description="Payloads of more than 4 MiB. Active ones may send; many that wait are a link that is full.",
        unit="count:transfers",
        queries=(Query(f"sum by (direction, state) ({of(catalogue.TRANSFERS)})", "{{direction}}, {{state}}"),),
        stacked=True,
        decimals=0,
    ),
    TimeSeries(
        title="Transfers taken up again",
        description="They went on from what had come before a connection or a process ended.",
        unit="count:transfers/s",
        queries=(Query(rate(catalogue.TRANSFER_RESUMES, "direction"), "{{direction}}"),),
        colours=DIRECTIONS,
    ),
)

CLIENTS = (
    TimeSeries(
        title="Payload of client processes",
        description="Received are models, sent are updates, repeats included.",
        unit="binBps",
        queries=(Query(rate(catalogue.CLIENT_BYTES, "direction"), "{{direction}}"),),
        colours=DIRECTIONS,
        width=8,
    ),
    TimeSeries(
        title="Sendings an answered update",
        description="1 is a network that loses nothing; what is above is sent again.",
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
        description="What the server said to updates, as the clients heard it.",
        colours=OUTCOMES,
        width=8,
        things="updates",
    ),
    TimeSeries(
        title="Welcomes",
        description="The first of each client, and one after each connection that was lost.",
        unit="count:welcomes/s",
        queries=(Query(rate(catalogue.CLIENT_WELCOMES), "welcomes"),),
    ),
    time_until_acknowledged(),
)

WIRE = Dashboard(
    uid="unstale-wire",
    title="Unstale / Wire and journal",
    description="What goes over the network, what is refused, and whether the disk keeps up.",
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
