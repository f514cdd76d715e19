"""Imports at the start of a program."""

import gc

import pytest

from unstale.imports import imports


def test_nothing_is_collected_during_imports_and_what_they_made_is_not_traversed_later() -> None:
    with imports():
        assert not gc.isenabled()
        made: list[object] = []
    assert gc.isenabled()
    assert not any(each is made for each in gc.get_objects())
    gc.unfreeze()
    assert any(each is made for each in gc.get_objects())


def test_collections_continue_after_a_failed_import() -> None:
    with pytest.raises(ImportError), imports():
        raise ImportError
    assert gc.isenabled()
