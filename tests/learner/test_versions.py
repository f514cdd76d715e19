"""The learner stores and forgets versions, and detects versions that are never forgotten."""

import hashlib
import struct

import pytest
import torch

from unstale.learner.learner import Learner
from unstale.learner.versions import Version
from unstale.policies import create


def version_of(value: float, *, extra: bool = False) -> Version:
    return Version(
        model_d=torch.full((2,), value),
        buffers_b=torch.full((1,), value + 1),
        extra_d=torch.full((2,), value + 2) if extra else None,
    )


def learner_at(version: int, *, past_versions: int = 0) -> Learner:
    policy = create("fedavg", dimension=2, clients=1)
    subject = Learner(
        torch.zeros(2), policy, learning_rate=lambda _: 0.5, keep_versions=True, past_versions=past_versions
    )
    for _ in range(version):
        subject.apply_round(torch.empty(0, 2), [])
    return subject


def test_a_stored_version_is_the_sent_object() -> None:
    subject = learner_at(1)
    assert subject.base(1) is subject.sent


def test_a_forgotten_version_is_gone() -> None:
    subject = learner_at(1)
    subject.forget(0)
    with pytest.raises(AssertionError, match=r"version 0 is not kept; kept are \[1\]"):
        subject.base(0)


def test_a_version_is_forgotten_once() -> None:
    subject = learner_at(1)
    subject.forget(1)
    with pytest.raises(AssertionError, match="version 1 is not kept"):
        subject.forget(1)


def test_more_versions_than_the_limit_are_a_programming_error() -> None:
    with pytest.raises(AssertionError, match="7 versions are kept and none was forgotten"):
        learner_at(7, past_versions=1)


def test_forgetting_frees_capacity() -> None:
    subject = learner_at(5)
    subject.forget(1)
    subject.apply_round(torch.empty(0, 2), [])
    assert subject.base(6).model_d.tolist() == [0.0, 0.0]


def test_only_requested_versions_are_kept() -> None:
    subject = learner_at(3)
    subject.keep_only({1, 3})
    assert list(subject.state_dict()["versions"]) == [1, 3]


def test_a_sent_version_is_model_buffers_and_second_vector() -> None:
    assert [part.tolist() for part in version_of(1.0, extra=True).parts] == [[1.0, 1.0], [2.0], [3.0, 3.0]]
    assert [part.tolist() for part in version_of(1.0).parts] == [[1.0, 1.0], [2.0]]


def test_the_digest_covers_all_sent_numbers() -> None:
    plain, with_extra = version_of(1.0), version_of(1.0, extra=True)
    assert plain.digest == hashlib.sha256(struct.pack("<3f", 1, 1, 2)).hexdigest()
    assert with_extra.digest == hashlib.sha256(struct.pack("<5f", 1, 1, 2, 3, 3)).hexdigest()


@pytest.mark.parametrize("extra", [False, True])
def test_a_version_is_restored_from_its_state_in_the_same_memory(extra: bool) -> None:
    version = version_of(1.0, extra=extra)
    again = Version.from_state(version.state_dict(), torch.device("cpu"))
    assert again.digest == version.digest
    assert [part.data_ptr() for part in again.parts] == [part.data_ptr() for part in version.parts]
