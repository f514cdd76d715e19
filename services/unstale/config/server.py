"""The keys of the server: addresses, leases, and the bounds on connections and updates."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from unstale.settings.values import CLIENTS_MAX, Address, HttpAddress, Seconds, Section, Text, is_loopback

NormBound = Annotated[float, Field(gt=0, le=1e19)]
ExamplesBound = Annotated[int, Field(ge=1, le=9 * 10**18)]


class ServerSettings(Section):
    address: Address = Field(
        "tcp://127.0.0.1:5555",
        json_schema_extra={"expected": "tcp://HOST:PORT"},
        description="Address of the server for clients; port 0 is any free port.",
    )
    http_address: HttpAddress | None = Field(
        "127.0.0.1:9464",
        json_schema_extra={"expected": "HOST:PORT"},
        description="HOST:PORT of the status page, /metrics, /healthz and /readyz; null for none.",
    )
    heartbeat_s: Seconds = Field(2.0, json_schema_extra={"unit": "s"}, description="Interval of heartbeats of clients.")
    lease_s: Seconds = Field(
        10.0,
        json_schema_extra={"unit": "s"},
        description="A client without messages for this time is lost; set it above the time of 4 MiB on the slowest "
        "link.",
    )
    retry_s: Seconds = Field(
        1.0,
        json_schema_extra={"unit": "s"},
        description="Pause before new tasks if every update of the round was refused.",
    )
    task_timeout_s: Seconds | None = Field(
        None,
        json_schema_extra={"unit": "s"},
        description="Time to answer a task; a client that does not is skipped for some rounds. null for no limit.",
    )
    linger_s: float = Field(
        2.0,
        ge=0,
        le=3600,
        json_schema_extra={"unit": "s"},
        description="Time to deliver pending messages when a process ends.",
    )
    stay: bool = Field(False, description="Continue to serve pages and metrics after the run, until stopped.")
    client_messages_per_s_max: int | None = Field(
        1000,
        ge=1,
        le=10**9,
        json_schema_extra={"unit": "messages/s"},
        description="Message rate of a client, with bursts of twice as many; others are dropped. null for no limit.",
    )
    quarantine_after: int | None = Field(
        10,
        ge=1,
        le=10**6,
        json_schema_extra={"unit": "refusals"},
        description="Consecutive refusals for errors of a client until its quarantine; null for never.",
    )
    quarantine_s: Seconds = Field(60.0, json_schema_extra={"unit": "s"}, description="Duration of a quarantine.")
    hello_s: Seconds = Field(
        15.0,
        json_schema_extra={"unit": "s"},
        description="Time until a connection must send a hello; also the limit of a handshake.",
    )
    strangers_max: int | None = Field(
        None,
        ge=1,
        le=CLIENTS_MAX,
        json_schema_extra={"unit": "connections"},
        description="Most connections without a hello; above it the oldest are cut. null for clients + 256.",
    )
    unread_bytes_max: int = Field(
        2**30,
        ge=2**20,
        le=2**50,
        json_schema_extra={"unit": "bytes"},
        description="Most bytes of incomplete messages; above it the connection with most is cut.",
    )
    memory_bytes_max: int | None = Field(
        None,
        ge=2**20,
        le=2**50,
        json_schema_extra={"unit": "bytes"},
        description="Most memory of the process; above it connections with most unread bytes are cut. null for 80 %.",
    )
    norm_max: Literal["adaptive"] | NormBound | None = Field(
        "adaptive",
        json_schema_extra={"expected": "adaptive or a number > 0 and <= 1e+19"},
        description="Largest L2 norm of an update divided by its learning rate: adaptive or a number; null for any.",
    )
    num_examples_max: Literal["partition"] | ExamplesBound | None = Field(
        "partition",
        json_schema_extra={"unit": "examples", "expected": "partition or a whole number from 1 to 9e+18"},
        description="Most examples that an update may claim: partition (those of the client) or a number; null for "
        "any.",
    )
    keys: Text | None = Field(
        None, description="Folder of `unstale keys` with the server's key and the authorized keys; null for plain text."
    )
    insecure: bool = Field(False, description="Allow plain text beyond loopback.")

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
