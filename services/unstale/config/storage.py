"""The keys of the stored run."""

from typing import Literal

from unstale.settings.values import Section, TargetText, Text, setting


class RunSettings(Section):
    directory: Text = setting(
        "unstale-run", "Directory of the run; the same command resumes the run from it after any shutdown."
    )
    durability: Literal["full", "normal", "off"] = setting(
        "normal",
        "Failures that an acknowledged update survives: of power (full), of the server (normal), or none "
        "(off: the run is not stored).",
    )
    sync_every_s: float = setting(
        1.0, "For durability normal: longest time of updates that a power failure may lose.", unit="s", ge=0.01, le=3600
    )
    checkpoint_every: int = setting(
        500, "Rounds between checkpoints; the most that a restart computes again.", unit="rounds", ge=1, le=10**9
    )
    payload_bytes_max: int = setting(
        4 * 1024**3, "Stored updates after which a checkpoint is written early.", unit="bytes", ge=1024, le=2**60
    )
    rows_memory_bytes_max: int = setting(
        1024**3,
        "Memory for pending updates; above it they wait on disk, if the policy works by columns.",
        unit="bytes",
        ge=0,
        le=2**60,
    )
    keep_updates: bool = setting(
        False, "Keep every update for `unstale replay`, not only those since the last checkpoints."
    )
    until: TargetText | None = setting(
        None,
        "Value of a metric that ends the run, such as `mae < 0.2`: on the test set, or else the mean over the clients. "
        "The metric is then the main one. null for no such end.",
        expected="the name of a metric, one of < <= > >=, and a number, such as mae < 0.2",
    )
    free_bytes_min: int = setting(
        256 * 1024**2, "Free space on the disk below which updates are refused.", unit="bytes", ge=0, le=2**60
    )
