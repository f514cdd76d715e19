"""`python -m monitoring`: write the files of catalogue, rules and dashboard code, or draw the dashboards."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from monitoring import metrics_document, preview, prometheus_rule
from monitoring.dashboards import DASHBOARDS
from unstale.errors import UserError

FOLDER = Path(__file__).parent / "grafana/dashboards"

app = typer.Typer(help=__doc__, add_completion=False, pretty_exceptions_enable=False)


def files() -> dict[Path, str]:
    """Contents of all generated files, by path."""
    document = metrics_document.DOCUMENT
    return {
        document: metrics_document.with_tables(document.read_text(encoding="utf-8")),
        prometheus_rule.OBJECT: prometheus_rule.text(prometheus_rule.RULES.read_text(encoding="utf-8")),
        **{FOLDER / f"{dashboard.uid}.json": dashboard.text() for dashboard in DASHBOARDS},
    }


@app.callback(invoke_without_command=True)
def write(context: typer.Context) -> None:
    """Write the dashboards' JSON, the rules for the Prometheus operator and the tables of docs/metrics.md."""
    if context.invoked_subcommand is not None:
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
        typer.echo(path)


@app.command("preview")
def draw(
    prometheus: Annotated[str, typer.Option(help="Address of a Prometheus that has scraped a run.")],
    out: Annotated[Path, typer.Option(help="Folder for the pictures.")],
    minutes: Annotated[float, typer.Option(help="How much of the past is shown.", min=0.1)] = 15.0,
    run: Annotated[str | None, typer.Option(help="Id of the run that those of one run show.")] = None,
    scrape: Annotated[float, typer.Option(help="Seconds between two scrapes.", min=0.1)] = 15.0,
) -> None:
    """Draw every dashboard, roughly as Grafana shows it, from what a Prometheus knows."""
    for path in preview.draw(DASHBOARDS, prometheus, out, seconds=60 * minutes, scrape_s=scrape, run=run):
        typer.echo(path)


if __name__ == "__main__":
    try:
        app()
    except UserError as error:
        typer.echo(f"monitoring: {error}", err=True)
        sys.exit(2)
