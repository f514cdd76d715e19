"""Resources of the machines that the processes use."""

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
        description="Servers, client processes and injectors that Prometheus can reach.",
        unit="short",
        queries=(Query(f"sum({UP})"),),
        decimals=0,
    ),
    Stat(
        title="Processes down",
        description="Processes that Prometheus cannot reach.",
        unit="short",
        queries=(Query(f"count({UP} == 0) or vector(0)"),),
        steps=Steps("green", ((1, "red"),)),
        decimals=0,
    ),
    Stat(
        title="Processor",
        description="Cores in use by all processes.",
        unit="count:cores",
        queries=(Query(f"sum({CPU})"),),
        decimals=2,
    ),
    Stat(
        title="Memory",
        description="Resident memory of all processes. Shared pages are counted once per process.",
        unit="bytes",
        queries=(Query(f"sum({MEMORY})"),),
    ),
    Stat(
        title="Open files",
        description="Open files of the process nearest to its limit, as a share of the limit. Each "
        "connection of a client is a file.",
        unit="percentunit",
        queries=(Query(f"max({OPEN_FILES})"),),
        steps=Steps("green", ((0.7, "yellow"), (0.9, "red"))),
        maximum=1,
        decimals=1,
    ),
    Stat(
        title="Disk full in",
        description="Time until the first disk is full, at the growth of the last hour. Empty without growth.",
        unit="s",
        queries=(Query(f"min({of(catalogue.RUN_DISK_FREE)} / ({GROWTH} > 0))"),),
        steps=Steps("red", ((3600, "yellow"), (24 * 3600, "green"))),
        decimals=1,
    ),
)

PROCESSES = (
    TimeSeries(
        title="Processor",
        description="Cores in use by a process; the twenty busiest. A server has one thread for messages "
        "and one for computation.",
        unit="count:cores",
        queries=(Query(most(CPU), EACH),),
    ),
    TimeSeries(
        title="Memory",
        description="Resident memory of a process; the twenty largest. With a streaming policy the memory "
        "of a server does not grow with the clients.",
        unit="bytes",
        queries=(Query(most(MEMORY), EACH),),
    ),
    TimeSeries(
        title="Open files relative to the limit",
        description="The twenty processes nearest to their limit. Each connection of a client is a file.",
        unit="percentunit",
        queries=(Query(most(OPEN_FILES), EACH),),
        steps=Steps("transparent", ((0.9, "red"),)),
        maximum=1,
        lined=True,
    ),
    TimeSeries(
        title="Uptime",
        description="The twenty processes that started last. A drop to 0 is a restart.",
        unit="s",
        queries=(Query(least(UPTIME), EACH),),
    ),
    Table(
        title="Versions by process",
        description="All processes should have the same version.",
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
        description="Memory that the learner has allocated on the accelerator; 0 on a CPU.",
        unit="bytes",
        width=8,
    ),
    *disk(),
)

RESOURCES = Dashboard(
    uid="unstale-resources",
    title="Unstale / Resources",
    description="Processor, memory, files and disk of all processes.",
    variables=(JOB, PROCESS, RUNS, SERVER),
    subject=PROCESS,
    rows=(Row("", NOW), Row("Processes", PROCESSES), Row("Device and disk of the servers", DEVICE_AND_DISK)),
)
