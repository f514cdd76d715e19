"""docs/adding-a-policy.md shows a policy that is short and passes."""

import re
from pathlib import Path
from typing import Any

import pytest

from unstale.conformance import examine
from unstale.policies import registry

DOCUMENT = Path(__file__).parents[2] / "docs/adding-a-policy.md"


def test_the_policy_of_the_document_is_short_and_passes_all_laws(monkeypatch: pytest.MonkeyPatch) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len([line for line in program.splitlines() if line]) < 30
    namespace: dict[str, Any] = {"__name__": "example"}
    exec(compile(program, DOCUMENT.name, "exec"), namespace)
    monkeypatch.setitem(registry._BUILT_IN, "punctual", namespace["Punctual"])
    rows = list(examine(("punctual",)))
    assert rows
    assert [row for row in rows if row.verdict != "pass"] == []
