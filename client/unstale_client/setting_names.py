"""Names of a client's settings, for error messages: keys of a configuration file, or arguments of a function."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingNames:
    server: str
    key: str
    server_key: str
    directory: str
    patience_s: str
    no_patience: str  # the setting without a limit, such as "patience_s is None"
    some_patience: str  # the setting with a limit of 60 s, such as "patience_s=60"
    own_ids: str  # a way to give each process other clients


CONFIGURATION = SettingNames(
    server="client.server",
    key="client.key",
    server_key="client.server_key",
    directory="client.directory",
    patience_s="client.patience_s",
    no_patience="client.patience_s is null",
    some_patience="--client.patience-s 60",
    own_ids="ids of its own with --first",
)
