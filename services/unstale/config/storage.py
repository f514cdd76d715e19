"""The keys that say what a run leaves on disk, and what that survives."""

from typing import Literal

from pydantic import Field

from unstale.settings.values import Section, Text


class RunSettings(Section):
    directory: Text = Field(
        "unstale-run", description="Directory of the run; the same command resumes the run from it after any shutdown."
    )
    durability: Literal["full", "normal", "off"] = Field(
        "normal",
        description="Failures that an acknowledged update survives: of power (full), of the server (normal), or none "
        "(off: the run is not stored).",
    )
    sync_every_s: float = Field(
        1.0,
        ge=0.01,
        le=3600,
        json_schema_extra={"unit": "s"},
        description="For durability normal: longest time of updates that a power failure may lose.",
    )
    checkpoint_every: int = Field(
        500,
        ge=1,
        le=10**9,
        json_schema_extra={"unit": "rounds"},
        description="Rounds between checkpoints; the most that a restart computes again.",
    )
    payload_bytes_max: int = Field(
        4 * 1024**3,
        ge=1024,
        le=2**60,
        json_schema_extra={"unit": "bytes"},
        description="Stored updates after which a checkpoint is written early.",
    )
    rows_memory_bytes_max: int = Field(
        1024**3,
        ge=0,
        le=2**60,
        json_schema_extra={"unit": "bytes"},
        description="Memory for pending updates; above it they wait on disk, if the policy works by columns.",
    )
    keep_updates: bool = Field(
        False, description="Keep every update for `unstale replay`, not only those since the last checkpoints."
    )
    free_bytes_min: int = Field(
        256 * 1024**2,
        ge=0,
        le=2**60,
        json_schema_extra={"unit": "bytes"},
        description="Free space on the disk below which updates are refused.",
    )
