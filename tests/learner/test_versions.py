"""The version store holds and forgets, and says when somebody does not."""

import pytest
import torch

from unstale.learner.versions import VersionStore


def store_of(*versions: int) -> VersionStore:
    store = VersionStore(limit=3)
    for version in versions:
        store.add(version, torch.full((2,), float(version)))
    return store


def test_a_version_is_the_very_tensor_that_was_added() -> None:
    store, model_d = VersionStore(limit=1), torch.ones(2)
    store.add(7, model_d)
    assert store.get(7) is model_d


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
    store.add(3, torch.zeros(2))
    assert store.get(3).tolist() == [0.0, 0.0]
