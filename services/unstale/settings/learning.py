"""The keys that say what is learned and how: model, data, partition, training, policy, trigger, selector, attack.

Of a section whose `name` chooses a part, a key belongs to the parts that take it (see `settings.part`).
"""

from typing import Any, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from unstale.settings.values import CLIENTS_MAX, Name, Seconds, Section, Text


class ModelSettings(Section):
    name: Name = Field(
        "digits_cnn",
        description="Model: digits_cnn, logreg, lenet_28, lenet_28_padded, lenet_cifar, lenet_gi, cnn3, emnist_cnn, "
        "celeba_cnn, resnet8 or resnet18, any of torchvision, such as mobilenet_v2, or package.module:factory.",
    )
    norm: Literal["group", "batch"] = Field(
        "group", description="Normalisation layers of resnet8 and resnet18: GroupNorm or BatchNorm."
    )
    projection_head: int | None = Field(
        None,
        ge=1,
        le=10**6,
        json_schema_extra={"unit": "outputs"},
        description="Width of a projection before the last layer, as in MOON; null for none.",
    )


class VariantSettings(Section):
    name: Name | None = Field(
        None,
        description="Data set whose examples replace those of data.name, one by one, during the run; null for constant "
        "data. The test set then holds the examples of both.",
    )
    path: Text | None = Field(None, description="Path of the variant, for npz and folder.")
    rate: float | None = Field(
        None,
        ge=1e-6,
        le=1e6,
        json_schema_extra={"unit": "examples/round"},
        description="Examples of a client that are replaced per version, such as 0.25.",
    )


class CompensatorSettings(Section):
    name: Name = Field(
        "none",
        description="Method that estimates fresh updates from stale ones: none, first-order, gradient-inversion, auto "
        "or oracle; see `unstale compensators`.",
    )
    settings: dict[str, Any] = Field({}, description="Settings of the compensator; see `unstale compensators NAME`.")
    ray: Text | None = Field(
        None,
        pattern=r"^(auto|local|(ray://)?[^/\s]+:[0-9]{1,5})$",
        json_schema_extra={"expected": "auto, local, HOST:PORT or ray://HOST:PORT"},
        description="Ray cluster that inverts updates: auto (the cluster of this machine), local (a cluster that is "
        "started for the run) or an address; null to invert in this process.",
    )
    ray_gpus: float = Field(
        0.0,
        ge=0,
        le=1,
        json_schema_extra={"unit": "GPUs"},
        description="Share of a GPU for each Ray task; 0 for the CPU.",
    )


class DataSettings(Section):
    name: Name = Field("digits", description="Data set, one of `unstale data list` or package.module:factory.")
    path: Text | None = Field(
        None, description="Path of the data, for npz (x_train, y_train, x_test, y_test) and folder (of images)."
    )
    cache: Text = Field(
        "~/.cache/unstale",
        description="Folder of downloaded data sets. Default: $XDG_CACHE_HOME/unstale if the variable is set, unless "
        "only "
        "~/.cache/unstale exists.",
    )
    download: bool = Field(False, description="Download the data set if data.cache does not contain it.")
    normalise: Literal["standard", "unit", "raw"] = Field(
        "standard",
        description="Scale of pixels: standard (mean 0 and deviation 1 per channel; with data.variant (x - 0.5) / 0.25 "
        "for x from 0 to 1), unit (0 to 1) or raw (0 to 255).",
    )
    column: Name | None = Field(
        None, description="Name C of the .npz arrays C_train and C_test with the group of each example."
    )
    share: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Share of each class that is used (its first examples), in the training and test set.",
    )
    validation: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Evaluate on this share of each class of the training set, which clients then lack, instead of the "
        "test set; null for the test set.",
    )
    variant: VariantSettings = VariantSettings()


class PartitionSettings(Section):
    name: Name = Field(
        "dirichlet",
        description="Distribution of the training set to clients: dirichlet, dirichlet-client, iid, classes, "
        "label-count, "
        "natural, natural-synthetic, column, slow-class or blocks; see `unstale partition show`.",
    )
    alpha: float = Field(
        0.3, ge=1e-3, le=1e6, description="Concentration of a Dirichlet partition; smaller is more skewed."
    )
    min_examples: int = Field(
        8, ge=1, le=10**9, json_schema_extra={"unit": "examples"}, description="Fewest examples of a client."
    )
    classes: int | None = Field(
        None,
        ge=1,
        le=10**6,
        json_schema_extra={"unit": "classes", "null_is": {"classes": 2, "label-count": 1}},
        description="Classes of a client.",
    )
    smallest: int | None = Field(
        None,
        ge=1,
        le=10**9,
        json_schema_extra={"unit": "examples", "null_is": 10},
        description="Fewest examples that a client draws, for label-count and natural-synthetic.",
    )
    largest: int | None = Field(
        None,
        ge=1,
        le=10**9,
        json_schema_extra={"unit": "examples", "null_is": 49},
        description="Most examples that a client draws, for label-count and natural-synthetic.",
    )
    budget: int | None = Field(
        None,
        ge=1,
        le=10**9,
        json_schema_extra={"unit": "examples", "null_is": 450},
        description="Examples of each client, for dirichlet-client.",
    )
    pool: int | None = Field(
        None,
        ge=1,
        le=10**9,
        json_schema_extra={"unit": "examples"},
        description="Examples of a class to draw from, for label-count; null for all.",
    )
    slow_share: float | None = Field(
        None, gt=0, le=1, json_schema_extra={"null_is": 0.1}, description="Share of slow clients, for slow-class."
    )
    slow_class: int | None = Field(
        None, ge=0, le=10**6, description="The class that only slow clients hold, for slow-class; null for the last."
    )


class ScheduleSettings(Section):
    name: Literal["constant", "inverse", "step", "exponential", "cosine"] = Field(
        "constant", description="Schedule of training.learning_rate over rounds."
    )
    warmup: int = Field(
        0,
        ge=0,
        le=10**9,
        json_schema_extra={"unit": "rounds"},
        description="Rounds of linear increase to training.learning_rate at the start.",
    )
    period: float | None = Field(
        None,
        gt=0,
        le=1e9,
        json_schema_extra={"unit": "rounds", "null_is": 1.0},
        description="For inverse: rounds after which the rate is halved.",
    )
    every: int | None = Field(
        None,
        ge=1,
        le=10**9,
        json_schema_extra={"unit": "rounds", "null_is": 100},
        description="For step: rounds between two reductions.",
    )
    factor: float | None = Field(
        None,
        gt=0,
        le=1,
        json_schema_extra={"null_is": {"step": 0.5, "exponential": 0.999}},
        description="For step and exponential: factor of the rate.",
    )
    final: float | None = Field(
        None,
        ge=0,
        le=1e6,
        json_schema_extra={"null_is": 0.0},
        description="For cosine: the rate at the end of the run.",
    )


class TrainingSettings(Section):
    name: Literal["sgd", "gradient", "fedprox", "moon", "scaffold"] = Field(
        "sgd",
        description="Local training: sgd (sends the change of the model after some steps), gradient (of one batch), or "
        "sgd with the terms of fedprox, moon or scaffold.",
    )
    learning_rate: float = Field(
        0.1, gt=0, le=1e6, description="Learning rate of a client's steps; with gradient, of the server's step."
    )
    batch_size: int = Field(
        32, ge=1, le=10**9, json_schema_extra={"unit": "examples"}, description="Size of a mini-batch."
    )
    steps: int | None = Field(
        5,
        ge=1,
        le=10**9,
        json_schema_extra={"unit": "steps"},
        description="Steps per task, unless training.epochs is set.",
    )
    epochs: int | None = Field(
        None, ge=1, le=10**6, json_schema_extra={"unit": "epochs"}, description="Epochs over a client's data per task."
    )
    momentum: float = Field(0.0, ge=0, lt=1, description="Momentum of a client's steps; 0 is none.")
    weight_decay: float = Field(0.0, ge=0, le=1, description="Weight decay of a client's steps; 0 is none.")
    mu: float | None = Field(
        None,
        ge=0,
        le=1e6,
        json_schema_extra={"null_is": {"fedprox": 0.01, "moon": 1.0}},
        description="Weight of the term that fedprox or moon adds.",
    )
    temperature: float | None = Field(
        None, gt=0, le=1e6, json_schema_extra={"null_is": 0.5}, description="Temperature of the term that moon adds."
    )
    schedule: ScheduleSettings = ScheduleSettings()


class OptimiserSettings(Section):
    name: Literal["none", "momentum", "adam", "yogi"] = Field(
        "none", description="Server optimiser of the policy's step (FedOpt)."
    )
    learning_rate: float | None = Field(
        None,
        gt=0,
        le=1e6,
        json_schema_extra={"null_is": {"momentum": 1.0, "adam": 0.01, "yogi": 0.01}},
        description="Learning rate of the server optimiser.",
    )
    beta1: float = Field(0.9, ge=0, lt=1, description="Decay of the mean of steps.")
    beta2: float = Field(0.99, ge=0, lt=1, description="For adam and yogi: decay of the mean of squares.")
    epsilon: float = Field(1e-3, gt=0, le=1e3, description="For adam and yogi: added to the denominator (tau).")


class PolicySettings(Section):
    name: Name = Field("dynsgd", description="Aggregation policy; see `unstale policies`.")
    settings: dict[str, Any] = Field({}, description="Settings of the policy; see `unstale policies NAME`.")
    server_multiplier: float = Field(
        1.0, gt=0, le=1e6, description="Factor of training.learning_rate in the server's step (eta_g)."
    )
    profile: Literal["paper", "reference"] = Field(
        "paper", description="Source of the policy's defaults: its paper, or the authors' released code."
    )
    clip_norm: float | None = Field(
        None, gt=0, le=1e12, description="Largest norm of an update; longer ones are scaled down. null for no limit."
    )
    optimiser: OptimiserSettings = OptimiserSettings()
    memory: Literal["host", "pinned", "mapped"] = Field(
        "host",
        description="Location of a policy's memory of all clients: host memory, pinned host memory, or a file in "
        "policy.memory_folder.",
    )
    memory_folder: Text | None = Field(
        None, description="Folder of the file for policy.memory mapped; null for the system's temporary folder."
    )


class TriggerSettings(Section):
    name: Name = Field(
        "k-async", description="Condition that closes a round: sync, k-sync, k-async, async, buffered or deadline."
    )
    k: int | None = Field(
        5,
        ge=1,
        le=CLIENTS_MAX,
        json_schema_extra={"unit": "updates"},
        description="Updates that close a round, for k-sync, k-async and buffered.",
    )
    wait_s: Seconds | None = Field(
        None, json_schema_extra={"unit": "s"}, description="Duration of a round, for deadline."
    )


class SelectorSettings(Section):
    name: Name = Field(
        "all", description="Selection of clients: all, random, round-robin or availability (rarely available first)."
    )
    size: int | None = Field(
        None,
        ge=1,
        le=CLIENTS_MAX,
        json_schema_extra={"unit": "clients"},
        description="Clients that work at a time, for random, round-robin and availability.",
    )


class AttackSettings(Section):
    name: Literal["sign-flip", "scale", "noise", "label-flip"] | None = Field(
        None, description="Attack by some of the clients, for experiments on robustness; null for none."
    )
    factor: float | None = Field(
        None,
        gt=0,
        le=1e30,
        json_schema_extra={"null_is": {"sign-flip": 1.0, "scale": 1000.0, "noise": 10.0}},
        description="Factor of the update (sign-flip, scale) or of the noise.",
    )
    clients: int = Field(
        1,
        ge=1,
        le=CLIENTS_MAX,
        json_schema_extra={"unit": "clients"},
        description="Number of clients that attack; the seed selects them.",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.name == "label-flip" and self.factor is not None:
            raise PydanticCustomError(
                "sentence",
                "attack.factor is {factor}, which attack.name label-flip does not take; leave it out",
                {"factor": self.factor},
            )
        return self
