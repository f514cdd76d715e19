"""Tables fit the terminal and cut off nothing."""

import json

import pytest

from unstale.cli import main
from unstale.cli.tables import print_table

WORDS = {
    "policies": "policies",
    "policies fedasync wkafl gsgm": "settings of policies",
    "compensators gradient-inversion auto": "settings of compensators",
    "data list": "data sets",
    "reproduce list": "presets",
    "conformance dynsgd": "cases",
}

SHOWN = ("policy", "case", "got")


@pytest.mark.parametrize("columns", ["40", "60", "80"])
@pytest.mark.parametrize("command", WORDS)
def test_every_word_of_a_table_is_whole(
    command: str, columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert main.run([*command.split(), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert main.run(command.split()) == 0
    text = capsys.readouterr().out
    assert "…" not in text
    words = set(text.split())
    for part in listed:
        settings = part.get("settings", []) if " " in command else []
        cells = [part.get(key, "") for key in SHOWN] + [setting["name"] for setting in settings]
        cells += [setting["description"] for setting in settings]
        assert {word for cell in cells for word in cell.split()} - words == set()


def test_the_widest_columns_get_the_remaining_width(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "24")
    print_table(("a", "b"), [("one", "to be or not to be"), ("three", "yes")], lines=False)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    # 24 less 2 at either side and 3 between leave 17: "three" takes 5, and 12 are left for the sentence.
    assert [line for line in lines if line and "─" not in line] == [
        "  a       b",
        "  one     to be or not",
        "          to be",
        "  three   yes",
    ]


def test_rows_are_lists_if_the_terminal_is_too_narrow(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    print_table(("name", "meaning"), [("hinge_plus_one", "whether it is there"), ("b", "rounds")])
    assert capsys.readouterr().out == (
        "\nhinge_plus_one\n  meaning  whether\n           it is\n           there\n\nb\n  meaning  rounds\n\n"
    )
