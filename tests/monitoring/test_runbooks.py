"""The instructions of the alert pages work: settings, commands, queries on the records of a run."""

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel
from typer.main import get_command

from support.prometheus import MONITORING
from unstale.cli import main
from unstale.compensators.inversion.settings import InversionSettings
from unstale.config import Settings
from unstale.journal.schema import SCHEMA

PAGES = sorted((MONITORING.parents[1] / "docs/runbooks").glob("Unstale*.md"))

over_all_pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def quoted(page: Path) -> list[str]:
    """Text between backticks."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"`([^`]+)`", text)


def keys_of(settings: type[BaseModel], before: str = "") -> Iterator[str]:
    """Dotted keys of a group and its groups."""
    for name, field in settings.model_fields.items():
        yield before + name
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from keys_of(field.annotation, f"{before}{name}.")


KEYS = {*keys_of(Settings), *keys_of(InversionSettings, "compensator.settings.")}
GROUPS = {key.partition(".")[0] for key in KEYS if "." in key}


@over_all_pages
def test_settings_named_by_a_page_exist(page: Path) -> None:
    for words in quoted(page):
        key = words.partition(":")[0]
        if "." in key and key.partition(".")[0] in GROUPS and not key.endswith(".key"):
            assert key in KEYS


@over_all_pages
def test_commands_and_options_named_by_a_page_exist(page: Path) -> None:
    for line in quoted(page):
        command, words = get_command(main.app), line.split()
        if words[0] == "unstale":
            del words[0]
            while hasattr(command, "commands"):
                command = command.commands[words.pop(0)]
            options = {name for option in command.params for name in option.opts}
            assert {word for word in words if word.startswith("-")} <= options


def test_the_queries_on_the_records_of_a_run_succeed() -> None:
    records = sqlite3.connect(":memory:")
    records.executescript(SCHEMA)
    questions = [one for page in PAGES for one in re.findall(r"'(SELECT [^']+)'", page.read_text())]
    assert questions
    for question in questions:
        assert records.execute(question).fetchall() == []
    records.close()


def test_the_documented_injector_address_is_the_one_it_serves() -> None:
    asked = {found for page in PAGES for found in re.findall(r"curl -s ([\d.:]+)/toxics", page.read_text())}
    assert asked == {Settings().injector.http_address}
