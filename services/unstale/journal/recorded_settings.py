"""The text of `config.yaml` as `run.db` holds it, by which a file that was changed or lost is recognised."""

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
"""In the table meta: the text of the file when the last server started."""


def text_of(database: Path) -> str | None:
    """The text that a database holds; None without one, or where the database cannot be read."""
    if not database.exists():
        return None
    try:
        with reported(database, "read"), closing(Connection(database, read_only=True)) as connection:
            return next((text or None for _, text in connection.select(META, "WHERE key = ?", KEY)), None)
    except UserError:  # who opens it next says so
        return None


def parsed(text: str) -> Settings | None:
    """The settings in such a text, None where another version of unstale has written it."""
    try:
        return Settings(**Settings(**yaml.load(text, Loader)).model_dump(exclude_defaults=True))  # noqa: S506  (a SafeLoader)
    except (yaml.YAMLError, ValidationError, TypeError):
        return None
