"""`unstale client`: take part in a run."""

from unstale.cli import report
from unstale.cli.options import takes_settings
from unstale.config import Settings
from unstale.config.scenario import read


@takes_settings("client", "model", "data", "device", "threads", "scenario")
def client(settings: Settings, ends_with_input: report.EndsWithInput = False) -> None:
    """Take part in a run with one client, or with --count of them in this process.

    The server says what the model, the data set and the training are; here stands where this machine has the data, and
    which code of its own it lets the server name. A client that starts first waits for the server. With a scenario its
    tasks take as long as on the devices that stand there.
    """
    from unstale.client.prepare import durations_of, workplace_of  # imports torch
    from unstale.client.service import ClientProcess

    report.log_to_stderr()
    scenario = settings.scenario.name
    if scenario is not None:
        read(scenario)  # a mistake in it is told now, not when a server answers
    process = ClientProcess(
        server=settings.client.server,
        first=settings.client.first,
        count=settings.client.count,
        prepare=lambda welcome: workplace_of(welcome, settings),
        heartbeat_s=settings.server.heartbeat_s,
        linger_s=settings.server.linger_s,
        patience_s=settings.client.patience_s,
        durations=None if scenario is None else lambda welcome: durations_of(welcome, settings),
    )
    report.stop_on_signals(lambda _: process.stop())
    if ends_with_input:
        report.stop_at_end_of_input(process.stop)
    process.run()
