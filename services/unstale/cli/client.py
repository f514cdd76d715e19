"""`unstale client`: take part in a run."""

from unstale.cli import report
from unstale.cli.options import takes_settings
from unstale.config import Settings


@takes_settings("client", "model", "data", "device", "threads")
def client(settings: Settings, ends_with_input: report.EndsWithInput = False) -> None:
    """Take part in a run with one client, or with --count of them in this process.

    The server says what the model, the data set and the training are; here stands where this machine has the data, and
    which code of its own it lets the server name. A client that starts first waits for the server.
    """
    from unstale.client.prepare import workplace_of  # imports torch
    from unstale.client.service import ClientProcess

    report.log_to_stderr()
    process = ClientProcess(
        server=settings.client.server,
        first=settings.client.first,
        count=settings.client.count,
        prepare=lambda welcome: workplace_of(welcome, settings),
        heartbeat_s=settings.server.heartbeat_s,
        linger_s=settings.server.linger_s,
        patience_s=settings.client.patience_s,
    )
    report.stop_on_signals(lambda _: process.stop())
    if ends_with_input:
        report.stop_at_end_of_input(process.stop)
    process.run()
