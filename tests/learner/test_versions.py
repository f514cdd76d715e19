"""The version store holds and forgets, and says when somebody does not."""

import hashlib
import struct

import pytest
import torch

from unstale.learner.versions import Version, VersionStore


def version_of(value: float, *, extra: bool = False) -> Version:
    return Version(
        model_d=torch.full((2,), value),
        buffers_b=torch.full((1,), value + 1),
        extra_d=torch.full((2,), value + 2) if extra else None,
    )


def store_of(*versions: int) -> VersionStore:
    store = VersionStore(limit=3)
    for version in versions:
        store.add(version, version_of(float(version)))
    return store


def test_a_version_is_the_very_one_that_was_added() -> None:
    store, version = VersionStore(limit=1), version_of(1.0)
    store.add(7, version)
    assert store.get(7) is version


def test_a_forgotten_version_is_gone() -> None:
    store = store_of(0, 1)
    store.forget(0)
    assert len(store) == 1
    with pytest.raises(AssertionError, match=r"version 0 is not kept; kept are \[1\]"):
        store.get(0)


def test_a_version_is_added_once() -> None:
    with pytest.raises(AssertionError, match="version 1 is already kept"):
        store_of(1, 1)


def test_a_version_is_forgotten_once() -> None:
    store = store_of(1)
    store.forget(1)
    with pytest.raises(AssertionError, match="version 1 is not kept"):
        store.forget(1)


def test_more_versions_than_the_limit_are_a_mistake_of_ours() -> None:
    with pytest.raises(AssertionError, match="3 versions are kept and none was forgotten"):
        store_of(0, 1, 2, 3)


def test_forgetting_makes_room() -> None:
    store = store_of(0, 1, 2)
    store.forget(1)
    store.add(3, version_of(0.0))
    assert store.get(3).model_d.tolist() == [0.0, 0.0]


def test_what_travels_is_the_model_then_the_buffers_then_the_second_vector() -> None:
    assert [part.tolist() for part in version_of(1.0, extra=True).parts] == [[1.0, 1.0], [2.0], [3.0, 3.0]]
    assert [part.tolist() for part in version_of(1.0).parts] == [[1.0, 1.0], [2.0]]


def test_the_digest_is_of_all_that_travels() -> None:
    plain, with_extra = version_of(1.0), version_of(1.0, extra=True)
    assert plain.digest == hashlib.sha256(struct.pack("<3f", 1, 1, 2)).hexdigest()
    assert with_extra.digest == hashlib.sha256(struct.pack("<5f", 1, 1, 2, 3, 3)).hexdigest()


@pytest.mark.parametrize("extra", [False, True])
def test_a_version_comes_back_from_its_state_in_the_same_memory(extra: bool) -> None:
    version = version_of(1.0, extra=extra)
    again = Version.from_state(version.state_dict(), torch.device("cpu"))
    assert again.digest == version.digest
    assert [part.data_ptr() for part in again.parts] == [part.data_ptr() for part in version.parts]


def test_a_store_comes_back_from_its_state() -> None:
    store = store_of(0, 1)
    device = torch.device("cpu")
    again = store_of(2)
    again.load({number: Version.from_state(kept, device) for number, kept in store.state_dict().items()})
    assert len(again) == 2
    assert [again.get(number).digest for number in (0, 1)] == [store.get(number).digest for number in (0, 1)]
