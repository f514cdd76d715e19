"""The three snippets of the page on trainers, each as the only client of a server."""

import re
from pathlib import Path

import pytest

from support.trained import Net, rows, served

pytestmark = [pytest.mark.network, pytest.mark.filterwarnings("default")]

PAGE = Path(__file__).parents[2] / "docs/trainers.md"
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
LIBRARIES = ("transformers", "lightning", "lightning")


@pytest.mark.parametrize("number", range(len(LIBRARIES)))
def test_a_snippet_takes_part_until_the_end_of_the_run(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(LIBRARIES[number], reason="it is not installed")
    assert len(SNIPPETS) == len(LIBRARIES)
    monkeypatch.chdir(tmp_path)
    names = {"model": Net(), "rows": rows()}
    factory: type = Net
    if number == 1:
        from support.lightning_module import Module

        names["module"], factory = Module(), Module
    with served(tmp_path, 3, factory) as server:
        exec(SNIPPETS[number], {**names, "address": server.address})
        run = server.wait()
    assert len(run.rounds) == 3 and run.updates.num_examples.tolist() == [8 * 10] * 3
