"""The limit of open files follows the number of connections, or the log says why it cannot."""

import resource
from pathlib import Path
from typing import Any

import pytest

from unstale.errors import UserError
from unstale_client.net import files
from unstale_client.net.files import SPARE, allow_connections


def with_limits(monkeypatch: pytest.MonkeyPatch, soft: int, hard: int) -> list[tuple[int, int]]:
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: set_to.append(limits))
    return set_to


def test_the_limit_is_raised_to_what_the_system_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    assert allow_and_see(monkeypatch, (1024, 65536), 10_000, 2) == [(65536, 65536)]
    assert allow_and_see(monkeypatch, (1024, 4096), 3, 1) == [(4096, 4096)]  # strangers' connections count, too


def test_no_hard_limit_is_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    unlimited = resource.RLIM_INFINITY
    assert allow_and_see(monkeypatch, (1024, unlimited), 1000, 2) == [(2000 + SPARE, unlimited)]
    assert allow_and_see(monkeypatch, (4096, unlimited), 3, 1) == [(4096, unlimited)]
    assert allow_and_see(monkeypatch, (unlimited, unlimited), 10**9, 2) == []


def test_a_system_that_allows_fewer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        UserError,
        match=r"^10000 connections need 20256 open files, and this system allows 4096; "
        r"raise the limit \(ulimit -n\) or host fewer clients in one process$",
    ):
        allow_and_see(monkeypatch, (1024, 4096), 10_000, 2)


def allow_and_see(monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], *arguments: Any) -> list[Any]:
    set_to = with_limits(monkeypatch, *limits)
    allow_connections(*arguments)
    return set_to


def with_kernel(monkeypatch: pytest.MonkeyPatch, folder: Path, **settings: str) -> None:
    monkeypatch.setattr(files, "SYSCTL", folder)
    for name, text in settings.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_a_backlog_that_the_system_cuts_short_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_kernel(monkeypatch, tmp_path, net__core__somaxconn="128\n")
    assert files.backlog_shortage(128, 4096) is None
    assert files.backlog_shortage(10_000, 128) is None  # no more was asked for
    assert files.backlog_shortage(10_000, 4096) == (
        "net.core.somaxconn is 128, but 10000 clients may connect at once, and those without a place try again after "
        "a second or more; set it to 4096 or more"
    )


def test_too_few_ports_for_the_clients_of_one_process_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_kernel(monkeypatch, tmp_path, net__ipv4__ip_local_port_range="32768\t33767\n")
    assert files.port_shortage(1000) is None
    assert files.port_shortage(1001) == (
        "net.ipv4.ip_local_port_range has 1000 ports, but 1001 clients need one each, and the others cannot connect; "
        "widen it, or host fewer clients on one machine"
    )


def test_a_system_without_these_settings_has_no_shortage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_kernel(monkeypatch, tmp_path)
    assert files.backlog_shortage(10**6, 4096) is None
    assert files.port_shortage(10**6) is None


def test_a_gateway_has_its_share_of_the_connections_and_four_standard_deviations() -> None:
    assert files.share_of_one(10_000, 0) == files.share_of_one(10_000, 1) == 10_000
    assert files.share_of_one(10_000, 4) == 2500 + 4 * 50
    assert files.share_of_one(3, 2) == 3
