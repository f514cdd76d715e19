"""Every setting of a run and of its processes: one frozen type, with default, unit, bounds and meaning.

The commented file, the help texts, the variables and the options are all made from these fields
(`config.keys`). A part is chosen by its `name`; what only the part itself knows is checked when it is made
(`config.parts`).
"""

from ipaddress import ip_address
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict
from typing_extensions import override

CLIENTS_MAX = 1_000_000  # the wire contract's limit
SECONDS_MAX = 7 * 24 * 3600.0  # the wire contract's limit
SEED_MAX = 2**63 - 1  # the wire contract's limit
THREADS_MAX = 1024  # more cores than a machine has
NAME_MAX = 128  # the wire contract's limit
TEXT_MAX = 4096  # a path or an address; what is longer was pasted by mistake

Name = Annotated[str, Field(min_length=1, max_length=NAME_MAX)]
Text = Annotated[str, Field(min_length=1, max_length=TEXT_MAX)]
Seconds = Annotated[float, Field(gt=0, le=SECONDS_MAX)]


def _is_host_and_port(address: str) -> bool:
    host, _, port = address.rpartition(":")
    return bool(host) and "/" not in host and port.isascii() and port.isdigit() and int(port) <= 65535


def _checked_address(address: str) -> str:
    if not (address.startswith("tcp://") and _is_host_and_port(address.removeprefix("tcp://"))):
        raise PydanticCustomError("address", "not tcp://HOST:PORT")
    return address


def _checked_http_address(address: str) -> str:
    if not _is_host_and_port(address):
        raise PydanticCustomError("address", "not HOST:PORT")
    return address


Address = Annotated[Text, AfterValidator(_checked_address)]
HttpAddress = Annotated[Text, AfterValidator(_checked_http_address)]


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach an address `tcp://HOST:PORT`."""
    host = address.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False  # a name, an interface or *: who can reach it is not known here


class Section(BaseModel):
    """A group of keys. Frozen; unknown keys and numbers that are no number are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ModelSettings(Section):
    name: Name = Field("digits_cnn", description="Model: logreg, lenet_28, lenet_cifar or digits_cnn.")


class DataSettings(Section):
    name: Name = Field(
        "digits", description="Data set: digits, which is built in, or npz, a file at data.path."
    )
    path: Text | None = Field(
        None, description="An .npz file with x_train, y_train, x_test and y_test, for data.name npz."
    )


class PartitionSettings(Section):
    name: Literal["dirichlet", "iid"] = Field(
        "dirichlet", description="How the training set is shared out: dirichlet, skewed by class, or iid."
    )
    alpha: float = Field(
        0.3, ge=1e-3, le=1e6, description="Concentration of the Dirichlet partition; smaller is more skewed."
    )
    min_examples: int = Field(
        8,
        ge=1,
        le=10**9,
        json_schema_extra={"unit": "examples"},
        description="What every client holds at least.",
    )


class TrainingSettings(Section):
    name: Literal["sgd", "gradient"] = Field(
        "sgd",
        description="Local training: sgd, which sends what some steps changed, or gradient, of one batch.",
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

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.name == "gradient":
            for key in ("epochs", "momentum", "weight_decay"):
                if getattr(self, key):
                    raise PydanticCustomError(
                        "sentence",
                        "training.{key} is {value}, expected none with training.name gradient, only with sgd",
                        {"key": key, "value": getattr(self, key)},
                    )
        return self


class PolicySettings(Section):
    name: Name = Field("dynsgd", description="Aggregation policy; `unstale policies` lists them.")
    settings: dict[str, Any] = Field(
        {}, description="The policy's own settings; `unstale policies` lists them."
    )
    server_multiplier: float = Field(
        1.0, gt=0, le=1e6, description="Multiplies training.learning_rate in the server's step (eta_g)."
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
    name: Name = Field("all", description="Who gets tasks: all, or random.")
    size: int | None = Field(
        None,
        ge=1,
        le=CLIENTS_MAX,
        json_schema_extra={"unit": "clients"},
        description="How many work at a time, for random.",
    )


class ServerSettings(Section):
    address: Address = Field(
        "tcp://127.0.0.1:5555",
        json_schema_extra={"expected": "tcp://HOST:PORT"},
        description="Where the server listens for clients; port 0 is any that is free.",
    )
    http_address: HttpAddress | None = Field(
        "127.0.0.1:9464",
        json_schema_extra={"expected": "HOST:PORT"},
        description="HOST:PORT of /metrics, /healthz and /readyz; null for none.",
    )
    heartbeat_s: Seconds = Field(
        2.0, json_schema_extra={"unit": "s"}, description="How often a client says that it is there."
    )
    lease_s: Seconds = Field(
        10.0,
        json_schema_extra={"unit": "s"},
        description="A client that is silent for so long is lost; longer than one model takes over the slowest link.",
    )
    retry_s: Seconds = Field(
        1.0,
        json_schema_extra={"unit": "s"},
        description="Pause before clients whose every update was refused get new tasks.",
    )
    linger_s: float = Field(
        2.0,
        ge=0,
        le=3600,
        json_schema_extra={"unit": "s"},
        description="How long messages under way may still be delivered when a process ends.",
    )
    insecure: bool = Field(
        False, description="Listen in plain text where other machines can connect, not only on loopback."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.lease_s <= self.heartbeat_s:
            raise PydanticCustomError(
                "sentence",
                "server.lease_s is {lease_s}, expected more than server.heartbeat_s, which is {heartbeat_s}",
                {"lease_s": self.lease_s, "heartbeat_s": self.heartbeat_s},
            )
        if not self.insecure and not is_loopback(self.address):
            raise PydanticCustomError(
                "sentence",
                "server.address is '{address}', where other machines could connect in plain text, "
                "expected a loopback address like tcp://127.0.0.1:5555, or server.insecure true",
                {"address": self.address},
            )
        return self


class ClientSettings(Section):
    server: Address = Field(
        "tcp://127.0.0.1:5555",
        json_schema_extra={"expected": "tcp://HOST:PORT"},
        description="Address of the server.",
    )
    first: int = Field(0, ge=0, lt=CLIENTS_MAX, description="Client id of the first client in this process.")
    count: int = Field(
        1,
        ge=1,
        le=CLIENTS_MAX,
        json_schema_extra={"unit": "clients"},
        description="How many clients this process hosts, with ids from client.first.",
    )
    patience_s: Seconds | None = Field(
        None,
        json_schema_extra={"unit": "s"},
        description="Give up when no server has answered for so long at the start; null waits for ever.",
    )
    data_path: Text | None = Field(
        None, description="Where this machine has the run's data file, if not at data.path."
    )


class LatencySettings(Section):
    name: Literal["exponential", "fixed"] = Field(
        "exponential",
        description="How long a simulated task takes: exponential, drawn anew each time, or fixed.",
    )
    mean_s: Seconds = Field(
        1.0, json_schema_extra={"unit": "s"}, description="Mean time a task, in virtual time."
    )


class SimulationSettings(Section):
    latency: LatencySettings = LatencySettings()


class Settings(BaseSettings):
    """Everything that can be set. Made by hand it is what it was told; `config.load` reads the sources."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        env_prefix="UNSTALE_",
        env_nested_delimiter="__",
        env_parse_none_str="null",
    )

    seed: int = Field(0, ge=0, le=SEED_MAX, description="Every random number of the run comes from it.")
    clients: int = Field(
        20,
        ge=1,
        le=CLIENTS_MAX,
        json_schema_extra={"unit": "clients"},
        description="How many clients there are (N); the training set is shared out among them.",
    )
    min_clients: int | None = Field(
        None,
        ge=1,
        le=CLIENTS_MAX,
        json_schema_extra={"unit": "clients"},
        description="The run starts when so many clients have joined; null for all of them.",
    )
    rounds: int = Field(
        200,
        ge=1,
        le=10**9,
        json_schema_extra={"unit": "rounds"},
        description="The run ends after so many versions of the model.",
    )
    evaluate_every: int = Field(
        10,
        ge=1,
        le=10**9,
        json_schema_extra={"unit": "rounds"},
        description="Rounds between evaluations on the test set.",
    )
    save_model: Text | None = Field(
        None, description="File for the last version of the model, in the safetensors format; null for none."
    )
    device: Text = Field("auto", description="Where to compute: auto, cpu, cuda, cuda:0, ... or mps.")
    threads: int = Field(
        1,
        ge=1,
        le=THREADS_MAX,
        json_schema_extra={"unit": "threads"},
        description="CPU threads that compute, in each process; the bits of a result may depend on it.",
    )
    model: ModelSettings = ModelSettings()
    data: DataSettings = DataSettings()
    partition: PartitionSettings = PartitionSettings()
    training: TrainingSettings = TrainingSettings()
    policy: PolicySettings = PolicySettings()
    trigger: TriggerSettings = TriggerSettings()
    selector: SelectorSettings = SelectorSettings()
    server: ServerSettings = ServerSettings()
    client: ClientSettings = ClientSettings()
    simulation: SimulationSettings = SimulationSettings()

    @override
    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """What is made by hand reads no environment: `config.load` alone does."""
        return (init_settings,)
