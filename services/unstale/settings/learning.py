"""The keys that say what is learned and how: model, data, partition, training, policy, trigger, selector, attack.

Of a section whose `name` chooses a part, a key belongs to the parts that take it (see `settings.part`).
"""

from typing import Any, Literal, Self

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from unstale.settings.values import CLIENTS_MAX, Name, PlainSettings, Seconds, Section, Text, ray_address, setting


def own_settings(kind: str) -> Any:
    return setting(
        {}, f"Settings of a plug-in: the parameters of a {kind} of your own that are no keys of this section."
    )


class ModelSettings(Section):
    name: Name = setting(
        "digits_cnn",
        "Model: digits_cnn, logreg, lenet_28, lenet_28_padded, lenet_cifar, lenet_gi, cnn3, emnist_cnn, "
        "celeba_cnn, resnet8 or resnet18, any of torchvision, such as mobilenet_v2, or package.module:factory.",
    )
    norm: Literal["group", "batch"] = setting(
        "group", "Normalisation layers of resnet8 and resnet18: GroupNorm or BatchNorm."
    )
    projection_head: int | None = setting(
        None, "Width of a projection before the last layer, as in MOON; null for none.", unit="outputs", ge=1, le=10**6
    )


class VariantSettings(Section):
    name: Name | None = setting(
        None,
        "Data set whose examples replace those of data.name, one by one, during the run; null for constant "
        "data. The test set then holds the examples of both.",
    )
    path: Text | None = setting(None, "Path of the variant, for npz and folder.")
    rate: float | None = setting(
        None,
        "Examples of a client that are replaced per version, such as 0.25.",
        unit="examples/round",
        ge=1e-6,
        le=1e6,
    )


class CompensatorSettings(Section):
    name: Name = setting(
        "none",
        "Method that estimates fresh updates from stale ones: none, first-order, gradient-inversion, auto "
        "or oracle; see `unstale compensators`.",
    )
    settings: dict[str, Any] = setting({}, "Settings of the compensator; see `unstale compensators NAME`.")
    ray: Text | None = ray_address("Ray cluster that inverts updates, an address as for ray; null for the one of ray.")
    ray_gpus: float = setting(0.0, "Share of a GPU for each Ray task; 0 for the CPU.", unit="GPUs", ge=0, le=1)


class DataSettings(Section):
    name: Name = setting("digits", "Data set, one of `unstale data list` or package.module:factory.")
    path: Text | None = setting(
        None, "Path of the data, for npz (x_train, y_train, x_test, y_test) and folder (of images)."
    )
    private: bool = setting(
        False,
        "Whether clients train on data of their own, which the server never reads: each client process names its "
        "data, and shares it out among the clients that it hosts. On the server, data.name is then test data, if it is "
        "set.",
    )
    cache: Text = setting(
        "~/.cache/unstale",
        "Folder of downloaded data sets. Default: $XDG_CACHE_HOME/unstale if the variable is set, unless "
        "only "
        "~/.cache/unstale exists.",
    )
    download: bool = setting(False, "Download the data set if data.cache does not contain it.")
    normalise: Literal["standard", "unit", "raw"] = setting(
        "standard",
        "Scale of pixels: standard (mean 0 and deviation 1 per channel; with data.variant (x - 0.5) / 0.25 "
        "for x from 0 to 1), unit (0 to 1) or raw (0 to 255).",
    )
    column: Name | None = setting(None, "Name C of the .npz arrays C_train and C_test with the group of each example.")
    share: float = setting(
        1.0, "Share of each class that is used (its first examples), in the training and test set.", gt=0, le=1
    )
    validation: float | None = setting(
        None,
        "Evaluate on this share of the training set, which clients then lack, instead of the test set: of each class, "
        "or of each group where the test set is of the same groups; null for the test set.",
        gt=0,
        lt=1,
    )
    variant: VariantSettings = VariantSettings()


class PartitionSettings(Section):
    name: Name = setting(
        "dirichlet",
        "Distribution of the training set to clients: dirichlet, dirichlet-client, iid, classes, "
        "label-count, "
        "natural, natural-synthetic, column, slow-class, blocks or package.module:name; see `unstale partition show`.",
    )
    alpha: float = setting(0.3, "Concentration of a Dirichlet partition; smaller is more skewed.", ge=1e-3, le=1e6)
    min_examples: int = setting(8, "Fewest examples of a client.", unit="examples", ge=1, le=10**9)
    classes: int | None = setting(
        None, "Classes of a client.", unit="classes", null_is={"classes": 2, "label-count": 1}, ge=1, le=10**6
    )
    smallest: int | None = setting(
        None,
        "Fewest examples that a client draws, for label-count and natural-synthetic.",
        unit="examples",
        null_is=10,
        ge=1,
        le=10**9,
    )
    largest: int | None = setting(
        None,
        "Most examples that a client draws, for label-count and natural-synthetic.",
        unit="examples",
        null_is=49,
        ge=1,
        le=10**9,
    )
    budget: int | None = setting(
        None, "Examples of each client, for dirichlet-client.", unit="examples", null_is=450, ge=1, le=10**9
    )
    pool: int | None = setting(
        None, "Examples of a class to draw from, for label-count; null for all.", unit="examples", ge=1, le=10**9
    )
    slow_share: float | None = setting(None, "Share of slow clients, for slow-class.", null_is=0.1, gt=0, le=1)
    slow_class: int | None = setting(
        None, "The class that only slow clients hold, for slow-class; null for the last.", ge=0, le=10**6
    )
    settings: PlainSettings = own_settings("partition")

    def __hash__(self) -> int:  # that of pydantic needs hashable values
        return hash(self.name)


class ObjectiveSettings(Section):
    name: Name = setting(
        "classification",
        "Loss of the training and metrics of evaluations: classification, binary, regression, segmentation, "
        "language-model or package.module:name.",
    )
    settings: PlainSettings = setting(
        {}, "Settings of the objective, such as ignore_index for segmentation and language-model."
    )


class ScheduleSettings(Section):
    name: Literal["constant", "inverse", "step", "exponential", "cosine"] = setting(
        "constant", "Schedule of training.learning_rate over rounds."
    )
    warmup: int = setting(
        0, "Rounds of linear increase to training.learning_rate at the start.", unit="rounds", ge=0, le=10**9
    )
    period: float | None = setting(
        None, "For inverse: rounds after which the rate is halved.", unit="rounds", null_is=1.0, gt=0, le=1e9
    )
    every: int | None = setting(
        None, "For step: rounds between two reductions.", unit="rounds", null_is=100, ge=1, le=10**9
    )
    factor: float | None = setting(
        None, "For step and exponential: factor of the rate.", null_is={"step": 0.5, "exponential": 0.999}, gt=0, le=1
    )
    final: float | None = setting(None, "For cosine: the rate at the end of the run.", null_is=0.0, ge=0, le=1e6)


class TrainingSettings(Section):
    name: Name = setting(
        "sgd",
        "Local training: sgd (sends the change of the model after some steps), gradient (of one batch), or "
        "sgd with the terms of fedprox, moon or scaffold; or package.module:name.",
    )
    learning_rate: float = setting(
        0.1, "Learning rate of a client's steps; with gradient, of the server's step.", gt=0, le=1e6
    )
    batch_size: int = setting(32, "Size of a mini-batch.", unit="examples", ge=1, le=10**9)
    steps: int | None = setting(5, "Steps per task, unless training.epochs is set.", unit="steps", ge=1, le=10**9)
    epochs: int | None = setting(None, "Epochs over a client's data per task.", unit="epochs", ge=1, le=10**6)
    momentum: float = setting(0.0, "Momentum of a client's steps; 0 is none.", ge=0, lt=1)
    weight_decay: float = setting(0.0, "Weight decay of a client's steps; 0 is none.", ge=0, le=1)
    mu: float | None = setting(
        None, "Weight of the term that fedprox or moon adds.", null_is={"fedprox": 0.01, "moon": 1.0}, ge=0, le=1e6
    )
    temperature: float | None = setting(None, "Temperature of the term that moon adds.", null_is=0.5, gt=0, le=1e6)
    settings: PlainSettings = own_settings("training")
    schedule: ScheduleSettings = ScheduleSettings()


class OptimiserSettings(Section):
    name: Literal["none", "momentum", "adam", "yogi"] = setting(
        "none", "Server optimiser of the policy's step (FedOpt)."
    )
    learning_rate: float | None = setting(
        None,
        "Learning rate of the server optimiser.",
        null_is={"momentum": 1.0, "adam": 0.01, "yogi": 0.01},
        gt=0,
        le=1e6,
    )
    beta1: float = setting(0.9, "Decay of the mean of steps.", ge=0, lt=1)
    beta2: float = setting(0.99, "For adam and yogi: decay of the mean of squares.", ge=0, lt=1)
    epsilon: float = setting(1e-3, "For adam and yogi: added to the denominator (tau).", gt=0, le=1e3)


class PolicySettings(Section):
    name: Name = setting("dynsgd", "Aggregation policy; see `unstale policies`.")
    settings: dict[str, Any] = setting({}, "Settings of the policy; see `unstale policies NAME`.")
    server_multiplier: float = setting(
        1.0, "Factor of training.learning_rate in the server's step (eta_g).", gt=0, le=1e6
    )
    profile: Literal["paper", "reference"] = setting(
        "paper", "Source of the policy's defaults: its paper, or the authors' released code."
    )
    clip_norm: float | None = setting(
        None, "Largest norm of an update; longer ones are scaled down. null for no limit.", gt=0, le=1e12
    )
    norm: Literal["none", "mean-of-updates"] = setting(
        "none", "Length of the step: the policy's own, or the mean norm of the round's updates (FedHist's INA)."
    )
    optimiser: OptimiserSettings = OptimiserSettings()
    memory: Literal["auto", "device", "host", "pinned", "mapped"] = setting(
        "auto",
        "Location of a policy's memory of all clients, or of FedHist's past rounds: the CUDA device, host memory, "
        "pinned host memory, or a file in policy.memory_folder. auto: the CUDA device if half of its memory is enough, "
        "else host memory; the two can differ in the last bits of the model.",
    )
    memory_folder: Text | None = setting(
        None, "Folder of the file for policy.memory mapped; null for the system's temporary folder."
    )


class TriggerSettings(Section):
    name: Name = setting(
        "k-async",
        "Condition that closes a round: sync, k-sync, k-async, async, buffered, deadline or package.module:name.",
    )
    k: int | None = setting(
        5, "Updates that close a round, for k-sync, k-async and buffered.", unit="updates", ge=1, le=CLIENTS_MAX
    )
    wait_s: Seconds | None = setting(None, "Duration of a round, for deadline.", unit="s")
    settings: PlainSettings = own_settings("trigger")


class SelectorSettings(Section):
    name: Name = setting(
        "all",
        "Selection of clients: all, random, round-robin, availability (rarely available first) or package.module:name.",
    )
    size: int | None = setting(
        None,
        "Clients that work at a time, for random, round-robin and availability.",
        unit="clients",
        ge=1,
        le=CLIENTS_MAX,
    )
    settings: PlainSettings = own_settings("selector")


class AttackSettings(Section):
    name: Literal["sign-flip", "scale", "noise", "label-flip"] | None = setting(
        None, "Attack by some of the clients, for experiments on robustness; null for none."
    )
    factor: float | None = setting(
        None,
        "Factor of the update (sign-flip, scale) or of the noise.",
        null_is={"sign-flip": 1.0, "scale": 1000.0, "noise": 10.0},
        gt=0,
        le=1e30,
    )
    clients: int = setting(
        1, "Number of clients that attack; the seed selects them.", unit="clients", ge=1, le=CLIENTS_MAX
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
