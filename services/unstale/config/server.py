"""The keys of the server: addresses, leases, and the bounds on connections and updates."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from unstale.settings.values import CLIENTS_MAX, Address, HttpAddress, Seconds, Section, Text, setting
from unstale_client.addresses import is_loopback

NormBound = Annotated[float, Field(gt=0, le=1e19)]
ExamplesBound = Annotated[int, Field(ge=1, le=9 * 10**18)]


class ServerSettings(Section):
    address: Address = setting(
        "tcp://127.0.0.1:5555",
        "Address of the server for clients; port 0 is any free port.",
        expected="tcp://HOST:PORT",
    )
    http_address: HttpAddress | None = setting(
        "127.0.0.1:9464",
        "HOST:PORT of the status page, /metrics, /healthz and /readyz; null for none.",
        expected="HOST:PORT",
    )
    gateways: int = setting(
        0,
        "Processes that hold the connections; what ends one does not end the run. 0: the server holds them itself.",
        unit="processes",
        ge=0,
        le=64,
    )
    heartbeat_s: Seconds = setting(2.0, "Interval of heartbeats of clients.", unit="s")
    lease_s: Seconds = setting(
        10.0,
        "A client without messages for this time is lost; set it above the time of 4 MiB on the slowest link.",
        unit="s",
    )
    retry_s: Seconds = setting(1.0, "Pause before new tasks if every update of the round was refused.", unit="s")
    task_timeout_s: Seconds | None = setting(
        None, "Time to answer a task; a client that does not is skipped for some rounds. null for no limit.", unit="s"
    )
    linger_s: float = setting(2.0, "Time to deliver pending messages when a process ends.", unit="s", ge=0, le=3600)
    stay: bool = setting(False, "Continue to serve pages and metrics after the run, until stopped.")
    client_messages_per_s_max: int | None = setting(
        1000,
        "Message rate of a client, with bursts of twice as many; others are dropped. null for no limit.",
        unit="messages/s",
        ge=1,
        le=10**9,
    )
    quarantine_after: int | None = setting(
        10,
        "Consecutive refusals for errors of a client until its quarantine; null for never.",
        unit="refusals",
        ge=1,
        le=10**6,
    )
    quarantine_s: Seconds = setting(60.0, "Duration of a quarantine.", unit="s")
    hello_s: Seconds = setting(
        15.0, "Time until a connection must send a hello; also the limit of a handshake.", unit="s"
    )
    strangers_max: int | None = setting(
        None,
        "Most connections without a hello; above it the oldest are cut. null for clients + 256.",
        unit="connections",
        ge=1,
        le=CLIENTS_MAX,
    )
    unread_bytes_max: int = setting(
        2**30,
        "Most bytes of incomplete messages; above it the connection with most is cut.",
        unit="bytes",
        ge=2**20,
        le=2**50,
    )
    memory_bytes_max: int | None = setting(
        None,
        "Most memory of the process; above it connections with most unread bytes are cut. null for 80 %.",
        unit="bytes",
        ge=2**20,
        le=2**50,
    )
    norm_max: Literal["adaptive"] | NormBound | None = setting(
        "adaptive",
        "Largest L2 norm of an update divided by its learning rate: adaptive or a number; null for any.",
        expected="adaptive or a number > 0 and <= 1e+19",
    )
    num_examples_max: Literal["partition"] | ExamplesBound | None = setting(
        "partition",
        "Most examples that an update may claim: partition (those of the client) or a number; null for any.",
        unit="examples",
        expected="partition or a whole number from 1 to 9e+18",
    )
    keys: Text | None = setting(
        None, "Folder of `unstale keys` with the server's key and the authorized keys; null for plain text."
    )
    insecure: bool = setting(False, "Allow plain text beyond loopback.")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.lease_s <= self.heartbeat_s:
            raise PydanticCustomError(
                "sentence",
                "server.lease_s is {lease_s}, expected more than server.heartbeat_s, which is {heartbeat_s}",
                {"lease_s": self.lease_s, "heartbeat_s": self.heartbeat_s},
            )
        if self.keys is None and not self.insecure and not is_loopback(self.address):
            raise PydanticCustomError(
                "sentence",
                "server.address is '{address}', where other machines could connect in plain text, "
                "expected server.keys, a loopback address like tcp://127.0.0.1:5555, or server.insecure true",
                {"address": self.address},
            )
        return self
