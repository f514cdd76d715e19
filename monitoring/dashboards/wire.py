"""What goes over the network, what is refused, and whether the disk keeps up."""

from monitoring.dashboards.dashboard import CLIENT, JOB, RUN, SERVER, Dashboard, Row
from monitoring.dashboards.expressions import latest, of, quantile, rate, share, spread
from monitoring.dashboards.panels import Heatmap, Query, Stat, Steps, TimeSeries
from monitoring.dashboards.shared import DIRECTIONS, OUTCOMES, SHARES, quantiles, updates_by_outcome
from unstale.metrics import catalogue

COMMITS = rate(catalogue.JOURNAL_COMMIT, part="count")
LOW_DISK = Steps("red", ((1024**3, "yellow"), (10 * 1024**3, "green")))

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
    Stat(
        title="Updates rejected",
        description="Share of the updates that count for nothing.",
        unit="percentunit",
        queries=(Query(share(rate(catalogue.UPDATES, outcome="rejected"), rate(catalogue.UPDATES))),),
        steps=Steps("green", ((0.01, "yellow"), (0.1, "red"))),
        maximum=1,
        decimals=1,
    ),
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
    TimeSeries(
        title="Rejected updates by reason",
        description="non-finite and norm-too-large are training that diverged or somebody hostile; expired-task is a "
        "client that was too slow; not-stored a disk that is full; wrong-signature another model.",
        unit="count:updates/s",
        queries=(Query(rate(catalogue.UPDATES, "reason", outcome="rejected"), "{{reason}}"),),
        stacked=True,
        width=8,
    ),
    TimeSeries(
        title="Refused messages by reason",
        description="What is no update, or not even a message: malformed, of another protocol, from a client that has "
        "not said hello or sends too fast.",
        unit="count:messages/s",
        queries=(Query(rate(catalogue.MESSAGES_REFUSED, "reason"), "{{reason}}"),),
        stacked=True,
        width=8,
    ),
    TimeSeries(
        title="Refused connections and quarantines",
        description="Connections without the right key, by reason; and clients kept out for a while because they were "
        "refused too often in a row.",
        unit="count:refusals/s",
        queries=(
            Query(rate(catalogue.HANDSHAKES_REFUSED, "reason"), "{{reason}}"),
            Query(rate(catalogue.QUARANTINES), "quarantines"),
        ),
        colours={"quarantines": "red"},
        width=8,
    ),
)

JOURNAL = (
    Heatmap(
        title="Journal commits over time",
        description="How many took how long; the brighter, the more. A second band is a disk that stalls.",
        unit="s",
        queries=(Query(spread(catalogue.JOURNAL_COMMIT), "{{le}}"),),
    ),
    TimeSeries(
        title="Journal commits: half, 95 % and 99 %",
        description="So long at most. run.durability says what a commit waits for.",
        unit="s",
        queries=quantiles(catalogue.JOURNAL_COMMIT),
        minimum=None,
        log=True,
        colours=SHARES,
    ),
    TimeSeries(
        title="Updates a commit",
        description="One commit makes all durable that came since the last. More a commit is how a busy server keeps "
        "up.",
        unit="count:updates",
        queries=(
            Query(f"{rate(catalogue.UPDATES, outcome='accepted')} / ({COMMITS} > 0)", "updates a commit"),
        ),
        width=8,
    ),
    TimeSeries(
        title="Disk taken by the run",
        description="Records, updates, checkpoints, transfers under way. It falls when a checkpoint makes updates "
        "unnecessary.",
        unit="bytes",
        queries=(Query(latest(catalogue.RUN_DISK), "run"),),
        width=8,
    ),
    TimeSeries(
        title="Disk free",
        description="On the file system of the run. Others may fill it, too.",
        unit="bytes",
        queries=(Query(of(catalogue.RUN_DISK_FREE), "{{instance}}"),),
        steps=LOW_DISK,
        width=8,
    ),
)

TRANSFERS = (
    TimeSeries(
        title="Transfers in chunks",
        description="Payloads of more than 4 MiB. Active ones may send; many that wait are a link that is full.",
        unit="count:transfers",
        queries=(
            Query(f"sum by (direction, state) ({of(catalogue.TRANSFERS)})", "{{direction}}, {{state}}"),
        ),
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
                f"{rate(catalogue.CLIENT_UPDATES_SENT)} / ({rate(catalogue.CLIENT_UPDATES)} > 0)",
                "sendings an update",
            ),
        ),
        decimals=2,
        width=8,
    ),
    TimeSeries(
        title="Answers to clients",
        description="What the server said to updates, as the clients heard it.",
        unit="count:updates/s",
        queries=(Query(rate(catalogue.CLIENT_UPDATES, "outcome"), "{{outcome}}"),),
        stacked=True,
        colours=OUTCOMES,
        width=8,
    ),
    TimeSeries(
        title="Welcomes",
        description="The first of each client, and one after each connection that was lost.",
        unit="count:welcomes/s",
        queries=(Query(rate(catalogue.CLIENT_WELCOMES), "welcomes"),),
    ),
    TimeSeries(
        title="Time until an update is acknowledged",
        description="From its first sending: the way there and back, repeats, and the time until it is durable.",
        unit="s",
        queries=quantiles(catalogue.CLIENT_ACKNOWLEDGE),
        colours=SHARES,
    ),
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
