"""The limit of open files follows the number of connections, or the log says why it cannot."""

import resource
from typing import Any

import pytest

from unstale.errors import UserError
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
