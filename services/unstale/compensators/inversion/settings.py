"""How updates are inverted: settings, and the presets that fill those which are not given."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

from pydantic import Field, model_validator

from unstale.compensators.first_order import FirstOrderSettings

EXAMPLES_MAX = 4096  # that are reconstructed of one update, whatever its client says that it holds

PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "fast": {},  # the defaults below
        "paper": {
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
        },
        "reference": {
            "images_share": 0.5,
            "images_max": 256,
            "iterations": 40_000,
            "label_loss": "bce-raw",
            "labels_start": "normal",
            "optimiser": "sign-adam",
            "learning_rate": 1.0,
            "schedule": "steps",
            "residual": 0.0,
            "trust": 1.0,
            "adapt": False,
            "warm_start": False,
        },
    }
)
"""`paper`: what Wang & Gao describe. `reference`: what their released code does. `fast`: ours
(docs/compensators.md)."""


def _ours(text: str = "docs/compensators.md") -> dict[str, Any]:
    return {"source": f"ours: {text}"}


class InversionSettings(FirstOrderSettings):
    """Those of first-order compensation are for what is not inverted."""

    preset: Literal["fast", "paper", "reference"] = Field(
        "fast",
        description="Where the defaults of the settings below come from: fast (ours), paper, or "
        "reference (the released code).",
        json_schema_extra=_ours(),
    )
    images_share: float = Field(
        0.5,
        gt=0,
        le=10,
        description="Reconstructed examples for each that the client holds.",
        json_schema_extra={"source": "Wang & Gao: 1/2"},
    )
    images_max: int | None = Field(
        32, ge=1, le=EXAMPLES_MAX, description="Reconstructed examples at most.", json_schema_extra=_ours()
    )
    iterations: int = Field(
        40, ge=1, le=10**7, description="Iterations of an inversion at most.", json_schema_extra=_ours()
    )
    adapt: bool = Field(
        True,
        description="Learn from later updates after how many iterations, and with what residual, estimates are best, "
        "and do not go on much longer; false: all iterations, and residual.",
        json_schema_extra=_ours(),
    )
    iterations_min: int = Field(
        5,
        ge=1,
        le=10**7,
        description="An inversion that the budget ends earlier is not used; one that is to have fewer is.",
        json_schema_extra=_ours(),
    )
    label_loss: Literal["soft", "bce-raw"] = Field(
        "soft",
        description="Loss against reconstructed labels: soft cross-entropy, or what the released code has.",
        json_schema_extra=_ours("what the paper intends"),
    )
    labels_start: Literal["gradient", "normal"] = Field(
        "gradient",
        description="First labels: read from the gradient of the last layer's bias, or drawn from N(0, 1).",
        json_schema_extra=_ours(),
    )
    optimiser: Literal["adam", "sign-adam"] = Field(
        "adam",
        description="What moves examples and labels; sign-adam sees only the signs of the examples' gradient.",
        json_schema_extra=_ours(),
    )
    learning_rate: float = Field(
        0.3, gt=0, le=1e3, description="Rate of that optimiser.", json_schema_extra=_ours()
    )
    schedule: Literal["steps", "constant"] = Field(
        "constant",
        description="How the rate falls over the iterations: by ten at 3/8, 5/8 and 7/8, or not.",
        json_schema_extra=_ours(),
    )
    residual: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Share of what the reconstruction leaves unexplained of the stale update that is added to the "
        "estimate; with adapt, while nothing is known.",
        json_schema_extra=_ours(),
    )
    trust: float = Field(
        0.5,
        gt=0,
        le=1,
        description="What part of the result the estimate is, the rest being the update as it came; with adapt, while "
        "nothing is known.",
        json_schema_extra=_ours(),
    )
    precision: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="What the model's layers compute with while inverting.",
        json_schema_extra=_ours(),
    )
    warm_start: bool = Field(
        True,
        description="Begin from what was reconstructed of the client last.",
        json_schema_extra={"source": "Wang & Gao"},
    )
    warm_share: float = Field(
        0.57,
        gt=0,
        le=1,
        description="Share of the iterations that an inversion with such a beginning takes, without adapt.",
        json_schema_extra={"source": "Wang & Gao: 43 % saved"},
    )
    warm_bytes_max: int = Field(
        256 * 1024**2,
        ge=0,
        le=2**50,
        description="Memory of the host for them, bytes; the client longest not inverted goes first.",
        json_schema_extra=_ours("32 images of CIFAR-10 are 393 KB"),
    )
    start: Literal["arrival", "close"] = Field(
        "arrival",
        description="When an inversion begins: when the update comes in, or with its round, as in a simulation.",
        json_schema_extra=_ours("with close a run over sockets equals a simulation"),
    )
    batch_clients: int = Field(
        8,
        ge=1,
        le=10**4,
        description="Updates that are inverted together at most; halved when the device's memory is short.",
        json_schema_extra=_ours(),
    )
    iterations_per_round: int | None = Field(
        None,
        ge=1,
        description="Iterations for all updates of a round together; null for any.",
        json_schema_extra=_ours("no bound"),
    )
    iterations_total: int | None = Field(
        None,
        ge=1,
        description="Iterations of the whole run; null for any.",
        json_schema_extra=_ours("no bound"),
    )
    seconds_per_round: float | None = Field(
        None,
        gt=0,
        description="How long a closed round waits for inversions, s; null for until they are done.",
        json_schema_extra=_ours("no bound"),
    )
    seconds_total: float | None = Field(
        None,
        gt=0,
        description="Seconds of computing for inversions in the whole run; null for any.",
        json_schema_extra=_ours("no bound"),
    )
    switch: Literal["matched", "oracle", "never"] = Field(
        "matched",
        description="By what errors inversion ends for good: of later updates, of true ones (simulation), or never.",
        json_schema_extra={"source": "Wang & Gao: matched"},
    )
    margin: float = Field(
        1.0,
        gt=0,
        le=100,
        description="Inversion ends when its mean error is over this times the stale updates' own.",
        json_schema_extra={"source": "Wang & Gao: 1; their released code has 0.9 in one script"},
    )
    window: int = Field(
        10,
        ge=1,
        le=10**6,
        description="Errors that the means are taken over, the newest.",
        json_schema_extra={"source": "Wang & Gao: as many as there are stale clients"},
    )
    smooth_rounds: int = Field(
        20,
        ge=0,
        le=10**6,
        description="Rounds in which the estimate gives way to the stale update after the switch.",
        json_schema_extra={"source": "ours: the paper publishes no value"},
    )
    last_round: int | None = Field(
        None,
        ge=1,
        description="Round after which nothing is inverted; null for none.",
        json_schema_extra={"source": "Wang & Gao's released code: 300 of 800"},
    )
    matches_bytes_max: int = Field(
        256 * 1024**2,
        ge=0,
        le=2**50,
        description="Memory of the host for estimates that wait for the true update, bytes; more than fit do not wait.",
        json_schema_extra=_ours("ten clients, ten rounds, a model of 62,006 parameters take 75 MB"),
    )
    counts_as_fresh: bool = Field(
        True,
        description="Whether a policy that weighs by staleness takes what was inverted for fresh.",
        json_schema_extra=_ours("the estimate is of an update of the current model"),
    )

    @model_validator(mode="before")
    @classmethod
    def _with_preset(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        preset = PRESETS.get(str(values.get("preset", "fast")), {})
        return {**preset, **values}

    @model_validator(mode="after")
    def _fits_together(self) -> "InversionSettings":
        if self.label_loss == "bce-raw" and self.labels_start == "gradient":
            raise ValueError(
                "labels_start is 'gradient', which makes labels of a softmax, expected 'normal' with label_loss "
                "'bce-raw'"
            )
        return self
