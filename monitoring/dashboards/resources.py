"""What the processes take of their machines."""

from monitoring.dashboards.dashboard import JOB, PROCESS, RUNS, SERVER, Dashboard, Row
from monitoring.dashboards.expressions import WINDOW, least, most, of, of_process
from monitoring.dashboards.panels import Column, Query, Stat, Steps, Table, TimeSeries
from monitoring.dashboards.shared import by_process, disk
from unstale.metrics import catalogue

EACH = "{{job}} {{instance}}"
UP = of_process("up")
CPU = f"rate({of_process('process_cpu_seconds_total')}[{WINDOW}])"
MEMORY = of_process("process_resident_memory_bytes")
OPEN_FILES = f"{of_process('process_open_fds')} / {of_process('process_max_fds')}"
UPTIME = f"time() - {of_process('process_start_time_seconds')}"
GROWTH = f"deriv({of(catalogue.RUN_DISK)}[1h])"
ABOUT = of_process("unstale_build_info")

NOW = (
    Stat(
        title="Processes up",
        description="Servers, client processes and injectors that Prometheus reaches.",
        unit="short",
        queries=(Query(f"sum({UP})"),),
        decimals=0,
    ),
    Stat(
        title="Processes down",
        description="Those that it does not reach.",
        unit="short",
        queries=(Query(f"count({UP} == 0) or vector(0)"),),
        steps=Steps("green", ((1, "red"),)),
        decimals=0,
    ),
    Stat(
        title="Processor",
        description="Cores that all of them keep busy.",
        unit="count:cores",
        queries=(Query(f"sum({CPU})"),),
        decimals=2,
    ),
    Stat(
        title="Memory",
        description="Resident, of all of them. Pages that processes share count more than once.",
        unit="bytes",
        queries=(Query(f"sum({MEMORY})"),),
    ),
    Stat(
        title="Open files",
        description="Of the process that is nearest to its limit. Each client is a connection, and a connection is a "
        "file.",
        unit="percentunit",
        queries=(Query(f"max({OPEN_FILES})"),),
        steps=Steps("green", ((0.7, "yellow"), (0.9, "red"))),
        maximum=1,
        decimals=1,
    ),
    Stat(
        title="Disk is full in",
        description="At the rate at which the runs grew in the last hour, the first of them. Nothing while none grows.",
        unit="s",
        queries=(Query(f"min({of(catalogue.RUN_DISK_FREE)} / ({GROWTH} > 0))"),),
        steps=Steps("red", ((3600, "yellow"), (24 * 3600, "green"))),
        decimals=1,
    ),
)

PROCESSES = (
    TimeSeries(
        title="Processor",
        description="Cores that a process keeps busy, of the twenty busiest. A server computes in one thread beside "
        "the one that answers.",
        unit="count:cores",
        queries=(Query(most(CPU), EACH),),
    ),
    TimeSeries(
        title="Memory",
        description="Resident, of the twenty largest. A server with a policy that folds stays flat, however many "
        "clients there are.",
        unit="bytes",
        queries=(Query(most(MEMORY), EACH),),
    ),
    TimeSeries(
        title="Open files beside the limit",
        description="Of the twenty processes that are nearest to it. Each client is a connection, and a connection is "
        "a file.",
        unit="percentunit",
        queries=(Query(most(OPEN_FILES), EACH),),
        steps=Steps("transparent", ((0.9, "red"),)),
        maximum=1,
        lined=True,
    ),
    TimeSeries(
        title="Up for",
        description="Of the twenty that started last. A line that falls to the ground is a restart.",
        unit="s",
        queries=(Query(least(UPTIME), EACH),),
    ),
    Table(
        title="What runs where",
        description="Versions should be the same everywhere.",
        unit="short",
        queries=(
            Query(f"max by (job, instance, version, python, torch) ({ABOUT})"),
            Query(f"max by (job, instance) ({UPTIME})"),
            Query(f"max by (job, instance) ({MEMORY})"),
        ),
        height=7,
        columns=(
            Column("job", "Job"),
            Column("instance", "Process"),
            Column("version", "unstale"),
            Column("python", "Python"),
            Column("torch", "PyTorch"),
            Column("Value #B", "Up for", unit="s"),
            Column("Value #C", "Memory", unit="bytes"),
        ),
    ),
)

DEVICE_AND_DISK = (
    by_process(
        catalogue.DEVICE_MEMORY,
        title="Device memory of the learner",
        description="What it has allocated on the accelerator; 0 on a CPU.",
        unit="bytes",
        width=8,
    ),
    *disk(),
)

RESOURCES = Dashboard(
    uid="unstale-resources",
    title="Unstale / Resources",
    description="What the processes take of their machines.",
    variables=(JOB, PROCESS, RUNS, SERVER),
    subject=PROCESS,
    rows=(Row("", NOW), Row("Processes", PROCESSES), Row("Device and disk of the servers", DEVICE_AND_DISK)),
)
