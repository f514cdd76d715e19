"""The copy of `config.yaml` in `run.db`, to detect a changed or missing file."""

from contextlib import closing
from pathlib import Path

import yaml
from pydantic import ValidationError

from unstale.config.loader import Loader
from unstale.config.settings import Settings
from unstale.errors import UserError
from unstale.journal.sqlite import Connection, reported
from unstale.journal.tables import META

KEY = "config"
"""Key in the table meta: the text of the file when the last server started."""


def text_of(database: Path) -> str | None:
    """The text in a database; None without one, or where the database cannot be read."""
    if not database.exists():
        return None
    try:
        with reported(database, "read"), closing(Connection(database, read_only=True)) as connection:
            return next((text or None for _, text in connection.select(META, "WHERE key = ?", KEY)), None)
    except UserError:  # raised again when the run opens it
        return None


def parsed(text: str) -> Settings | None:
    """The settings in the text, None where another version of unstale wrote it."""
    try:
        return Settings(**Settings(**yaml.load(text, Loader)).model_dump(exclude_defaults=True))  # noqa: S506  (a SafeLoader)
    except (yaml.YAMLError, ValidationError, TypeError):
        return None
