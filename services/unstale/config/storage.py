"""The keys that say what a run leaves on disk, and what that survives."""

from typing import Literal

from pydantic import Field

from unstale.settings.values import Section, Text


class RunSettings(Section):
    directory: Text = Field(
        "unstale-run",
        description="Directory of the run; the same command resumes the run from it after any shutdown.",
    )
    durability: Literal["full", "normal", "off"] = Field(
        "normal",
        description="What an acknowledged update survives: the machine's end (full), the server's (normal), or nothing "
        "(off: the run leaves nothing behind).",
    )
    sync_every_s: float = Field(
        1.0,
        ge=0.01,
        le=3600,
        json_schema_extra={"unit": "s"},
        description="Durability normal: a power failure loses at most what was acknowledged in this time before it.",
    )
    checkpoint_every: int = Field(
        500,
        ge=1,
        le=10**9,
        json_schema_extra={"unit": "rounds"},
        description="Rounds between checkpoints; what is to be computed again after a crash.",
    )
    payload_bytes_max: int = Field(
        4 * 1024**3,
        ge=1024,
        le=2**60,
        json_schema_extra={"unit": "bytes"},
        description="A checkpoint comes early when so much of updates has been stored since the last.",
    )
    rows_memory_bytes_max: int = Field(
        1024**3,
        ge=0,
        le=2**60,
        json_schema_extra={"unit": "bytes"},
        description="Where more could wait for their rounds, updates wait on disk, if the policy only weighs them.",
    )
    keep_updates: bool = Field(
        False,
        description="Keep every update, for `unstale replay`, instead of those since the last checkpoints.",
    )
    free_bytes_min: int = Field(
        256 * 1024**2,
        ge=0,
        le=2**60,
        json_schema_extra={"unit": "bytes"},
        description="Updates are refused while the disk has less room than this and an update.",
    )
