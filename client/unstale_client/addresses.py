"""Addresses `tcp://HOST:PORT`."""

from ipaddress import ip_address


def is_host_and_port(address: str) -> bool:
    host, _, port = address.rpartition(":")
    return bool(host) and "/" not in host and port.isascii() and port.isdigit() and int(port) <= 65535


def is_loopback(address: str) -> bool:
    """Whether an address `tcp://HOST:PORT` is certainly reachable from this machine only."""
    host = address.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False  # a name, an interface or *: may be reachable from other machines
