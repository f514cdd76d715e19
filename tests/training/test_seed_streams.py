"""Streams are numpy's PCG64 seeded from SeedSequence(seed, spawn_key=(stream, ...)).

Source: docs/methods/README.md#numerical-conventions
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unstale.seeds import Stream, stream

WORDS = st.one_of(st.integers(0, 3), st.integers(2**32 - 2, 2**32 + 1), st.integers(0, 2**63 - 1))


@given(WORDS, st.sampled_from(Stream), st.lists(WORDS, max_size=10))
def test_a_stream_is_that_of_its_spawn_key(seed: int, purpose: Stream, key: list[int]) -> None:
    spawned = np.random.SeedSequence(seed, spawn_key=(int(purpose), *key))  # noqa: TID251  (what it should equal)
    expected = np.random.Generator(np.random.PCG64(spawned))  # noqa: TID251
    assert stream(seed, purpose, *key).integers(2**63, size=3).tolist() == expected.integers(2**63, size=3).tolist()


def test_a_number_below_0_is_refused() -> None:
    for arguments in ((-1, Stream.BATCHES, 1), (1, Stream.BATCHES, -1)):
        with pytest.raises(ValueError, match="non-negative"):
            stream(*arguments)
