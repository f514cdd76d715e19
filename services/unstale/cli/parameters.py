"""Parameters that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
RunDirectory = Annotated[Path, typer.Argument(metavar="RUN", help="Directory of the run.", show_default=False)]
EndsWithInput = Annotated[bool, typer.Option("--ends-with-input", hidden=True)]
"""Stop at the end of standard input: of a process whose parent holds the pipe, so that it never outlives the parent."""
