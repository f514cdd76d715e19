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
        "group", description="Layers that normalise in resnet8 and resnet18: GroupNorm or BatchNorm."
    )
    projection_head: int | None = Field(
        None,
        ge=1,
        le=10**6,
        json_schema_extra={"unit": "outputs"},
        description="Put a projection of this width in front of the last layer, as MOON's authors do; null for none.",
    )


class VariantSettings(Section):
    name: Name | None = Field(
        None,
        description="Data set whose examples take the place of those of data.name, one by one, while clients train; "
        "null for data that stays. The test set is then that of both.",
    )
    path: Text | None = Field(
        None, description="Where it is, for data.variant.name npz and folder, as data.path is for data.name."
    )
    rate: float | None = Field(
        None,
        ge=1e-6,
        le=1e6,
        json_schema_extra={"unit": "examples/round"},
        description="How many of a client's examples give way at each version, such as 0.25.",
    )


class CompensatorSettings(Section):
    name: Name = Field(
        "none",
        description="What a stale update is turned into first: none, first-order, gradient-inversion, auto or oracle; "
        "`unstale compensators` lists them.",
    )
    settings: dict[str, Any] = Field(
        {}, description="The compensator's own settings; `unstale compensators` lists them."
    )
    ray: Text | None = Field(
        None,
        pattern=r"^(auto|local|(ray://)?[^/\s]+:[0-9]{1,5})$",
        json_schema_extra={"expected": "auto, local, HOST:PORT or ray://HOST:PORT"},
        description="Ray cluster whose machines invert updates: auto (the one that this machine is part of), local "
        "(one that is started for it) or an address; null to invert in this process.",
    )
    ray_gpus: float = Field(
        0.0,
        ge=0,
        le=1,
        json_schema_extra={"unit": "GPUs"},
        description="Share of a GPU that each Ray task has; 0 for the CPU.",
    )


class DataSettings(Section):
    name: Name = Field(
        "digits", description="Data set; `unstale data list` lists them. Also package.module:factory."
    )
    path: Text | None = Field(
        None,
        description="Where the data is, for data.name npz (x_train, y_train, x_test, y_test) and folder (of images).",
    )
    cache: Text = Field(
        "~/.cache/unstale",
        description="Folder where data sets lie that can be downloaded. The default is $XDG_CACHE_HOME/unstale where "
        "that variable is set, unless only ~/.cache/unstale is there.",
    )
    download: bool = Field(False, description="Download the data set when it is not in data.cache.")
    normalise: Literal["standard", "unit", "raw"] = Field(
        "standard",
        description="Pixels: standard (mean 0, deviation 1 in each channel; with data.variant what is 0 to 1, less 0.5 "
        "and over 0.25), unit (0 to 1) or raw (0 to 255).",
    )
    column: Name | None = Field(
        None, description="Column of the .npz that says whose an example is: column_train and column_test."
    )
    share: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Share of each class that is used, its first examples, of the training and of the test set.",
    )
    validation: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Measure on this share of each class of the training set, which clients do not get, and not on the "
        "test set; null for the test set.",
    )
    variant: VariantSettings = VariantSettings()


class PartitionSettings(Section):
    name: Name = Field(
        "dirichlet",
        description="How the training set is shared out: dirichlet, dirichlet-client, iid, classes, label-count, "
        "natural, natural-synthetic, column, slow-class or blocks; `unstale partition show` draws it.",
    )
    alpha: float = Field(
        0.3, ge=1e-3, le=1e6, description="Concentration of a Dirichlet partition; smaller is more skewed."
    )
    min_examples: int = Field(
        8,
        ge=1,
        le=10**9,
        json_schema_extra={"unit": "examples"},
        description="What every client holds at least.",
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
        description="Least that a client draws, for label-count and natural-synthetic.",
    )
    largest: int | None = Field(
        None,
        ge=1,
        le=10**9,
        json_schema_extra={"unit": "examples", "null_is": 49},
        description="Most that a client draws, for label-count and natural-synthetic.",
    )
    budget: int | None = Field(
        None,
        ge=1,
        le=10**9,
        json_schema_extra={"unit": "examples", "null_is": 450},
        description="What each client may take, for dirichlet-client.",
    )
    pool: int | None = Field(
        None,
        ge=1,
        le=10**9,
        json_schema_extra={"unit": "examples"},
        description="Examples of a class to draw from, for label-count; null for all.",
    )
    slow_share: float | None = Field(
        None,
        gt=0,
        le=1,
        json_schema_extra={"null_is": 0.1},
        description="Share of the clients that are slow, for slow-class.",
    )
    slow_class: int | None = Field(
        None,
        ge=0,
        le=10**6,
        description="The class that only slow clients hold, for slow-class; null for the last.",
    )


class ScheduleSettings(Section):
    name: Literal["constant", "inverse", "step", "exponential", "cosine"] = Field(
        "constant", description="How training.learning_rate goes over the rounds."
    )
    warmup: int = Field(
        0,
        ge=0,
        le=10**9,
        json_schema_extra={"unit": "rounds"},
        description="Rounds in which the rate first rises to training.learning_rate.",
    )
    period: float | None = Field(
        None,
        gt=0,
        le=1e9,
        json_schema_extra={"unit": "rounds", "null_is": 1.0},
        description="For inverse: rounds after which half the rate is left.",
    )
    every: int | None = Field(
        None,
        ge=1,
        le=10**9,
        json_schema_extra={"unit": "rounds", "null_is": 100},
        description="For step: rounds between two steps down.",
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
        description="Local training: sgd, which sends what some steps changed, gradient, of one batch, or sgd with "
        "what FedProx, MOON or SCAFFOLD add to it.",
    )
    learning_rate: float = Field(
        0.1, gt=0, le=1e6, description="Rate of a client's steps; with gradient, of the server's step."
    )
    batch_size: int = Field(
        32, ge=1, le=10**9, json_schema_extra={"unit": "examples"}, description="Size of a mini-batch."
    )
    steps: int | None = Field(
        5,
        ge=1,
        le=10**9,
        json_schema_extra={"unit": "steps"},
        description="Steps a task, unless training.epochs is given.",
    )
    epochs: int | None = Field(
        None,
        ge=1,
        le=10**6,
        json_schema_extra={"unit": "epochs"},
        description="Passes over a client's data a task.",
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
        None,
        gt=0,
        le=1e6,
        json_schema_extra={"null_is": 0.5},
        description="Temperature of the term that moon adds.",
    )
    schedule: ScheduleSettings = ScheduleSettings()


class OptimiserSettings(Section):
    name: Literal["none", "momentum", "adam", "yogi"] = Field(
        "none", description="Server optimiser that the policy's step goes through (FedOpt); none for none."
    )
    learning_rate: float | None = Field(
        None,
        gt=0,
        le=1e6,
        json_schema_extra={"null_is": {"momentum": 1.0, "adam": 0.01, "yogi": 0.01}},
        description="Learning rate of the server optimiser.",
    )
    beta1: float = Field(0.9, ge=0, lt=1, description="Share of the last step that is kept.")
    beta2: float = Field(
        0.99, ge=0, lt=1, description="For adam and yogi: share of the squares that is kept."
    )
    epsilon: float = Field(
        1e-3, gt=0, le=1e3, description="For adam and yogi: what keeps them from dividing by nothing (tau)."
    )


class PolicySettings(Section):
    name: Name = Field("dynsgd", description="Aggregation policy; `unstale policies` lists them.")
    settings: dict[str, Any] = Field(
        {}, description="The policy's own settings; `unstale policies` lists them."
    )
    server_multiplier: float = Field(
        1.0, gt=0, le=1e6, description="Multiplies training.learning_rate in the server's step (eta_g)."
    )
    profile: Literal["paper", "reference"] = Field(
        "paper",
        description="Where the policy's defaults come from: its paper, or its authors' released code.",
    )
    clip_norm: float | None = Field(
        None, gt=0, le=1e12, description="Scale longer updates down to this norm first; null for none."
    )
    optimiser: OptimiserSettings = OptimiserSettings()
    memory: Literal["host", "pinned", "mapped"] = Field(
        "host",
        description="Where a policy's memory of all clients lies: on the host, page-locked, or in a file of "
        "policy.memory_folder.",
    )
    memory_folder: Text | None = Field(
        None, description="Folder of the file for policy.memory mapped; null for the system's own."
    )


class TriggerSettings(Section):
    name: Name = Field(
        "k-async", description="When a round closes: sync, k-sync, k-async, async, buffered or deadline."
    )
    k: int | None = Field(
        5,
        ge=1,
        le=CLIENTS_MAX,
        json_schema_extra={"unit": "updates"},
        description="Updates that close a round, for k-sync, k-async and buffered.",
    )
    wait_s: Seconds | None = Field(
        None, json_schema_extra={"unit": "s"}, description="How long a round lasts, for deadline."
    )


class SelectorSettings(Section):
    name: Name = Field(
        "all",
        description="Who gets tasks: all, random, round-robin or availability (who is there most rarely first).",
    )
    size: int | None = Field(
        None,
        ge=1,
        le=CLIENTS_MAX,
        json_schema_extra={"unit": "clients"},
        description="How many work at a time, for random, round-robin and availability.",
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
        description="Multiplies the update (sign-flip, scale) or the noise.",
    )
    clients: int = Field(
        1,
        ge=1,
        le=CLIENTS_MAX,
        json_schema_extra={"unit": "clients"},
        description="How many of the run's clients attack; the run's seed chooses them.",
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
