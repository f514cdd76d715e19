"""`headlines.yaml`: the headline claims of each paper, in a few words, and why they hold or not."""

from functools import cache
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from unstale_papers.verdicts import Answer

Text = Annotated[str, Field(min_length=1)]


class Headline(BaseModel):
    """A headline claim.

    Attributes:
        preset: name of the preset that tests it.
        claim: its text there.
        short: the claim in a few words.
        verdict: that `why` explains; with another one `why` and `caveat` are left out. None without `why`.
        caveat: a few words beside the verdict.
        why: one or a few sentences.
        evidence: Markdown files in the folder of the published results.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    preset: Text
    claim: Text
    short: Text
    verdict: Answer | None = None
    caveat: str = ""
    why: str = ""
    evidence: list[Text] = []


@cache
def load() -> dict[tuple[str, str], Headline]:
    """Read the file: headline claims by preset and text, the first to show first.

    Raises:
        pydantic.ValidationError: for a file that is not as described.
    """
    text = Path(__file__).with_name("headlines.yaml").read_text(encoding="utf-8")
    every = TypeAdapter(list[Headline]).validate_python(yaml.safe_load(text))
    return {(one.preset, one.claim): one for one in every}
