"""Settings of gradient inversion, and presets of their defaults."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

from pydantic import model_validator

from unstale.compensators.first_order import FirstOrderSettings
from unstale.part_settings import setting

EXAMPLES_MAX = 4096  # reconstructed for one update, however many examples its client reports

OURS = "ours: docs/compensators.md"

_PAPER_SIGN_ADAM: dict[str, Any] = {
    "images_share": 0.5,
    "images_max": None,
    "iterations": 15_000,
    "label_loss": "soft",
    "labels_start": "normal",
    "optimiser": "sign-adam",
    "learning_rate": 1.0,
    "schedule": "steps",
    "residual": 0.0,
    "trust": 1.0,
    "adapt": False,
    "warm_share": 0.57,
}
_REFERENCE = {
    **{key: value for key, value in _PAPER_SIGN_ADAM.items() if key != "warm_share"},
    "images_max": 256,
    "iterations": 40_000,
    "label_loss": "bce-raw",
    "warm_start": False,
}

PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {"fast": {}, "paper-sign-adam": _PAPER_SIGN_ADAM, "reference": _REFERENCE}
)
"""`paper-sign-adam`: as Wang & Gao describe, with the optimiser of their released code in place of gradient descent.
`reference`: as their released code. `fast`: ours (docs/compensators.md)."""

_RENAMED = MappingProxyType({"paper": "paper-sign-adam"})
"""Names of presets in files of older versions, and their present names."""


class InversionSettings(FirstOrderSettings):
    """The settings of first-order compensation apply to updates that are not inverted."""

    preset: Literal["fast", "paper-sign-adam", "reference"] = setting(
        "fast",
        "Defaults of the settings below: fast (ours), paper-sign-adam (the paper, optimised as the released code does) "
        "or reference (the released code).",
        OURS,
    )
    images_share: float = setting(
        0.5, "Reconstructed examples per example of the client.", "Wang & Gao: 1/2", gt=0, le=10
    )
    images_max: int | None = setting(32, "Reconstructed examples at most.", OURS, ge=1, le=EXAMPLES_MAX)
    iterations: int = setting(40, "Iterations of an inversion at most.", OURS, ge=1, le=10**7)
    adapt: bool = setting(
        True,
        "Learn from later updates which number of iterations, residual and trust is best, and stop soon "
        "after; false: use all iterations, residual and trust.",
        OURS,
    )
    iterations_min: int = setting(
        5, "An inversion that the budget ends earlier is not used, unless it was planned shorter.", OURS, ge=1, le=10**7
    )
    disparity: Literal["l1", "l2", "cosine"] = setting(
        "l1",
        "Distance between local updates that an inversion minimises: L1, L2, or 1 - cosine, which ignores lengths.",
        "Wang & Gao",
    )
    label_loss: Literal["soft", "bce-raw"] = setting(
        "soft",
        "Loss against reconstructed labels: soft cross-entropy, or that of the released code.",
        "ours: as the paper intends",
    )
    labels_start: Literal["gradient", "normal"] = setting(
        "gradient", "First labels: estimated from the gradient of the last layer's bias, or drawn from N(0, 1).", OURS
    )
    optimiser: Literal["adam", "sign-adam"] = setting(
        "adam", "Optimiser of examples and labels; sign-adam uses only the signs of the examples' gradient.", OURS
    )
    learning_rate: float = setting(0.3, "Rate of that optimiser.", OURS, gt=0, le=1e3)
    schedule: Literal["steps", "constant"] = setting(
        "constant", "Schedule of the rate: divided by ten at 3/8, 5/8 and 7/8 of the iterations, or constant.", OURS
    )
    residual: float = setting(
        0.5,
        "Share of the unexplained part of the stale update that is added to the estimate; with adapt, while "
        "nothing is known.",
        OURS,
        ge=0,
        le=1,
    )
    trust: float = setting(
        0.5,
        "Weight of the estimate, the update itself has the rest; with adapt, while nothing is known.",
        OURS,
        gt=0,
        le=1,
    )
    precision: Literal["float32", "bfloat16"] = setting(
        "float32", "Number format of the model's layers while inverting.", OURS
    )
    warm_start: bool = setting(True, "Start from the last reconstruction of the client.", "Wang & Gao")
    warm_share: float = setting(
        0.57,
        "Share of the iterations for an inversion with a warm start, without adapt.",
        "Wang & Gao: 43 % saved",
        gt=0,
        le=1,
    )
    warm_bytes_max: int = setting(
        256 * 1024**2,
        "Host memory for warm starts, bytes; the least recently inverted client is removed first.",
        "ours: 32 images of CIFAR-10 are 393 KB",
        ge=0,
        le=2**50,
    )
    start: Literal["arrival", "close"] = setting(
        "arrival",
        "When an inversion begins: when the update arrives, or when its round closes, as in a simulation.",
        "ours: with close a run over sockets equals a simulation",
    )
    batch_clients: int = setting(
        8,
        "Most updates that are inverted together; halved when the device's memory is too small.",
        OURS,
        ge=1,
        le=10**4,
    )
    iterations_per_round: int | None = setting(
        None, "Most iterations for all updates of a round; null for no limit.", "ours: no bound", ge=1
    )
    iterations_total: int | None = setting(
        None, "Most iterations of the whole run; null for no limit.", "ours: no bound", ge=1
    )
    seconds_per_round: float | None = setting(
        None, "How long a closed round waits for inversions, s; null for no limit.", "ours: no bound", gt=0
    )
    seconds_total: float | None = setting(
        None, "Most seconds of computing for inversions in the whole run; null for no limit.", "ours: no bound", gt=0
    )
    switch: Literal["matched", "oracle", "never"] = setting(
        "matched",
        "Errors that end inversion for good: of later updates, of true ones (simulation), or never.",
        "Wang & Gao: matched",
    )
    margin: float = setting(
        1.0,
        "Inversion ends when its mean error is over this times the stale updates' own.",
        "Wang & Gao: 1; their released code has 0.9 in one script",
        gt=0,
        le=100,
    )
    window: int = setting(
        10, "Number of newest errors in the means.", "Wang & Gao: as many as there are stale clients", ge=1, le=10**6
    )
    smooth_rounds: int = setting(
        20,
        "Rounds in which the stale update replaces the estimate gradually after the switch.",
        "ours: the paper publishes no value",
        ge=0,
        le=10**6,
    )
    last_round: int | None = setting(
        None, "Round after which nothing is inverted; null for none.", "Wang & Gao's released code: 300 of 800", ge=1
    )
    matches_bytes_max: int = setting(
        256 * 1024**2,
        "Host memory for estimates that wait for the true update, bytes; more than fit do not wait.",
        "ours: ten clients, ten rounds, a model of 62,006 parameters take 75 MB",
        ge=0,
        le=2**50,
    )
    counts_as_fresh: bool = setting(
        True,
        "Whether a policy that weighs by staleness treats inverted updates as fresh.",
        "ours: the estimate is of an update of the current model",
    )

    @model_validator(mode="before")
    @classmethod
    def _with_preset(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        name = values.get("preset", "fast")
        if isinstance(name, str) and name in _RENAMED:
            name = _RENAMED[name]
            values = {**values, "preset": name}
        return {**PRESETS.get(str(name), {}), **values}

    @model_validator(mode="after")
    def _fits_together(self) -> "InversionSettings":
        if self.label_loss == "bce-raw" and self.labels_start == "gradient":
            raise ValueError(
                "labels_start is 'gradient', which estimates labels of a softmax, expected 'normal' with label_loss "
                "'bce-raw'"
            )
        return self
