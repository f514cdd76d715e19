"""Every setting of a run and of its processes: one frozen type, with default, unit, bounds and meaning.

The commented file, the help texts, the variables and the options are all made from these fields
(`config.keys`). A part is chosen by its `name`; what only the part itself knows is checked when it is made
(`config.build`).
"""

from typing import Any, Literal, Self

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from unstale.config.server import ServerSettings as ServerSettings
from unstale.config.storage import RunSettings as RunSettings
from unstale.settings.learning import (
    AttackSettings,
    CompensatorSettings,
    DataSettings,
    ModelSettings,
    ObjectiveSettings,
    PartitionSettings,
    PolicySettings,
    SelectorSettings,
    TrainingSettings,
    TriggerSettings,
)
from unstale.settings.trackers import EXPECTED as TRACKERS_EXPECTED
from unstale.settings.trackers import Trackers
from unstale.settings.values import (
    CLIENTS_MAX,
    SEED_MAX,
    THREADS_MAX,
    Address,
    HttpAddress,
    Seconds,
    Section,
    SettingsOfClients,
    Text,
    check_link,
    ray_address,
    setting,
)
from unstale_client.addresses import is_loopback

APP = "app"
"""Name of the model of an app."""
PRIVATE = "private"
"""Name of data that clients have and the server does not know."""


class EncodingSettings(Section):
    updates: Literal["float32", "bfloat16", "float16", "int8", "top-k"] = setting(
        "float32", "Encoding of updates, for clients that support it: fewer bytes and a known error."
    )
    models: Literal["float32", "bfloat16", "float16", "int8"] = setting(
        "float32", "Encoding of models, for clients that support it."
    )
    block: int = setting(256, "Consecutive numbers with a common scale, for int8.", unit="numbers", ge=8, le=65_536)
    fraction: float = setting(0.01, "Share of an update's numbers that is sent, for top-k.", gt=0, le=0.5)


class ClientSettings(Section):
    server: Address = setting("tcp://127.0.0.1:5555", "Address of the server.", expected="tcp://HOST:PORT")
    first: int = setting(0, "Client id of the first client in this process.", ge=0, lt=CLIENTS_MAX)
    count: int = setting(
        1, "Number of clients in this process, with ids from client.first.", unit="clients", ge=1, le=CLIENTS_MAX
    )
    patience_s: Seconds | None = setting(
        None,
        "Time without messages from the server until the client gives up, at least one lease; null for no "
        "limit, so that the client survives restarts of the server.",
        unit="s",
    )
    task_timeout_s: Seconds | None = setting(
        None,
        "Time for a task, after which the client gives it back. After as long again the process ends with exit code 3, "
        "because Python cannot end the function that still runs. null for no limit.",
        unit="s",
    )
    data_path: Text | None = setting(None, "Path of the run's data on this machine, if not data.path.")
    directory: Text = setting("unstale-client", "Directory of unacknowledged updates and of the state between tasks.")
    durability: Literal["full", "normal", "off"] = setting(
        "normal",
        "Failures that the directory survives: of power (full), of this process (normal), or none (off: memory only).",
    )
    key: Text | None = setting(
        None,
        "File NAME.key_secret of `unstale keys`, with the keys of this process and of the server; null for plain text.",
    )
    server_key: Text | None = setting(
        None,
        "File NAME.key of the process at client.server, such as an injector; null for the server's key in client.key.",
    )
    insecure: bool = setting(False, "Allow plain text beyond loopback.")
    http_address: HttpAddress | None = setting(
        None,
        "HOST:PORT of /metrics, /healthz and /readyz of this process, such as 127.0.0.1:9466; null for none.",
        expected="HOST:PORT",
    )

    def check_link(self) -> None:
        """Raise UserError when it would be in plain text to another machine. For who connects: the server may read the
        same file.
        """
        check_link("client.server", self.server, "client.key", self.key, insecure=self.insecure)


class FlowerSettings(Section):
    model: Text | None = setting(
        None,
        "First model of an app of Flower: module:name of a function or class that makes a PyTorch module, an array or "
        "several arrays; null for Net in the module task of the app's package.",
    )
    run_config: Text | None = setting(
        None, "Other values for the app's table tool.flwr.app.config, as in `flwr run`: pairs such as lr=0.1 epochs=2."
    )
    partition_id: int | None = setting(
        None,
        "Partition of the first client in this process, which is its client id; null for client.first.",
        ge=0,
        lt=CLIENTS_MAX,
    )
    num_partitions: int | None = setting(
        None,
        "Number of partitions of the data of an app of Flower, and of clients unless clients is set; null for clients.",
        unit="partitions",
        ge=1,
        le=CLIENTS_MAX,
    )


class InjectorSettings(Section):
    address: Address = setting(
        "tcp://127.0.0.1:5556",
        "Address of the injector for clients; port 0 is any free port.",
        expected="tcp://HOST:PORT",
    )
    upstream: Address = setting(
        "tcp://127.0.0.1:5555", "Address of the server behind the injector.", expected="tcp://HOST:PORT"
    )
    http_address: HttpAddress | None = setting(
        "127.0.0.1:9465",
        "HOST:PORT of the injector's HTTP interface and /metrics; null for none.",
        expected="HOST:PORT",
    )
    in_flight_bytes_max: int = setting(
        256 * 1024 * 1024,
        "Most bytes in flight; above it the injector pauses reading.",
        unit="bytes",
        ge=1024 * 1024,
        le=2**40,
    )
    patience_s: Seconds | None = setting(
        30.0,
        "Time without a connection to the server at the start until the injector gives up; null for no limit.",
        unit="s",
    )
    tcp: bool = setting(False, "Also relay TCP streams, so that toxics of the tcp layer can be added later.")
    keys: Text | None = setting(
        None,
        "Folder of `unstale keys` with the injector's key and the authorized keys; null for plain text on both sides.",
    )
    insecure: bool = setting(
        False, "Allow plain text beyond loopback on both sides, and the HTTP interface for other machines."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.address == self.upstream and not self.address.endswith(":0"):
            raise PydanticCustomError(
                "sentence",
                "injector.upstream is '{address}', which is where the injector itself listens, expected the server's "
                "address",
                {"address": self.upstream},
            )
        if self.insecure:
            return self
        if self.keys is None and not is_loopback(self.address):
            raise PydanticCustomError(
                "sentence",
                "injector.address is '{address}', where other machines could connect in plain text, "
                "expected injector.keys, a loopback address like tcp://127.0.0.1:5556, or injector.insecure true",
                {"address": self.address},
            )
        if self.http_address is not None and not is_loopback(f"tcp://{self.http_address}"):
            raise PydanticCustomError(
                "sentence",
                "injector.http_address is '{address}', where other machines could change the toxics without a key, "
                "expected a loopback address like 127.0.0.1:9465, or injector.insecure true",
                {"address": self.http_address},
            )
        return self

    def check_link(self) -> None:
        """As `ClientSettings.check_link`."""
        check_link("injector.upstream", self.upstream, "injector.keys", self.keys, insecure=self.insecure)


class ScenarioSettings(Section):
    name: Text | None = setting(
        None, "Scenario of delays and faults: one of `unstale scenario list` or a YAML file; null for none."
    )
    time_scale: float = setting(
        1.0, "Factor of every time of the scenario; 0.1 makes it ten times as fast.", ge=1e-4, le=1e6
    )


class SimulationSettings(Section):
    backend: Literal["auto", "loop", "processes", "vmap"] = setting(
        "auto",
        "Computation of simulated clients: loop (one by one), processes, or vmap (one batch on the device, with other "
        "bits); auto is the cluster of ray if it is set, else vmap on CUDA where it can compute the run, else the "
        "fastest with the bits of loop.",
    )
    processes: int | None = setting(
        None, "Number of processes, including this one; null for one per core.", unit="processes", ge=1, le=THREADS_MAX
    )


class Settings(Section):
    """Everything that can be set. `config.load` reads the sources."""

    seed: int = setting(0, "Seed of all random numbers of the run.", ge=0, le=SEED_MAX)
    clients: int = setting(
        20, "Number of clients (N); the training set is distributed to them.", unit="clients", ge=1, le=CLIENTS_MAX
    )
    min_clients: int | None = setting(
        None, "Clients that must join before the run starts; null for all.", unit="clients", ge=1, le=CLIENTS_MAX
    )
    rounds: int = setting(200, "Rounds of the run; each makes a version of the model.", unit="rounds", ge=1, le=10**9)
    evaluate_every: int = setting(10, "Rounds between evaluations on the test set.", unit="rounds", ge=1, le=10**9)
    evaluate_clients_every: int | None = setting(
        None,
        "Rounds between evaluations by clients on their own test examples; null for none. With an app the default is "
        "evaluate_every.",
        unit="rounds",
        ge=1,
        le=10**9,
    )
    client_settings: SettingsOfClients = setting(
        {}, "Settings for the training of clients, which the server sends to them: up to 32 names of numbers and texts."
    )
    app: Text | None = setting(
        None,
        "The user's own model, data and training: module:name of an unstale.App or of a ClientApp of Flower, also in "
        "the current folder; null for the built-in ones.",
    )
    initial: Text | None = setting(
        None,
        "File of the first version of an app's model (safetensors), with which a server needs no app; null for the "
        "app's first model.",
    )
    save_model: Text | None = setting(None, "File for the last version of the model (safetensors); null for none.")
    device: Text = setting("auto", "Device: auto, cpu, cuda, cuda:0, ... or mps.")
    device_precision: Literal["strict", "tf32"] = setting(
        "strict",
        "Arithmetic of matrix products and convolutions on CUDA: strict (float32), or tf32, which is faster and has a "
        "mantissa of 10 bits.",
    )
    threads: int = setting(
        1,
        "CPU threads for computation in each process; the bits of results may depend on it.",
        unit="threads",
        ge=1,
        le=THREADS_MAX,
    )
    ray: Text | None = ray_address(
        "Ray cluster that trains the clients of a simulation, and inverts updates for a compensator: auto (the cluster "
        "of this machine), local (a cluster that is started for the run) or an address; null for this process."
    )
    trackers: Trackers = setting(
        [],
        "Trackers that show the run, such as [tensorboard], or with settings [{name: mlflow, settings: {experiment: "
        "digits}}]: mlflow, tensorboard, wandb or package.module:Class.",
        expected=TRACKERS_EXPECTED,
    )
    model: ModelSettings = ModelSettings()
    data: DataSettings = DataSettings()
    partition: PartitionSettings = PartitionSettings()
    training: TrainingSettings = TrainingSettings()
    objective: ObjectiveSettings = ObjectiveSettings()
    policy: PolicySettings = PolicySettings()
    compensator: CompensatorSettings = CompensatorSettings()
    trigger: TriggerSettings = TriggerSettings()
    selector: SelectorSettings = SelectorSettings()
    encoding: EncodingSettings = EncodingSettings()
    run: RunSettings = RunSettings()
    server: ServerSettings = ServerSettings()
    client: ClientSettings = ClientSettings()
    flower: FlowerSettings = FlowerSettings()
    injector: InjectorSettings = InjectorSettings()
    scenario: ScenarioSettings = ScenarioSettings()
    attack: AttackSettings = AttackSettings()
    simulation: SimulationSettings = SimulationSettings()

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_an_app(cls, values: Any) -> Any:
        """An app has its own model and data, which have these names, and its own evaluation on clients.

        The names take the place of the default ones, which a file of `config write` has.
        """
        if not isinstance(values, dict) or (values.get("app") is None and values.get("initial") is None):
            return values
        every = values.get("evaluate_every", cls.model_fields["evaluate_every"].default)
        named = {"evaluate_clients_every": every, **values}
        for section, default, name in (("model", ModelSettings().name, APP), ("data", DataSettings().name, PRIVATE)):
            given = values.get(section, {})
            if isinstance(given, dict) and given.get("name", default) == default:
                named[section] = {**given, "name": name}
        return named

    @model_validator(mode="before")
    @classmethod
    def _partitions_of_flower(cls, values: Any) -> Any:
        """Partitions are clients: flower.num_partitions and flower.partition_id set what is not set otherwise."""
        flower = values.get("flower") if isinstance(values, dict) else None
        if not isinstance(flower, dict):
            return values
        named = dict(values)
        if flower.get("num_partitions") is not None:
            named.setdefault("clients", flower["num_partitions"])
        client = values.get("client", {})
        if flower.get("partition_id") is not None and isinstance(client, dict):
            named["client"] = {"first": flower["partition_id"], **client}
        return named

    @property
    def is_app(self) -> bool:
        """Whether clients train by an app."""
        return self.app is not None or self.initial is not None
