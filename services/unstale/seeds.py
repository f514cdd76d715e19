"""Random numbers of a run: one seed, one stream per purpose, a new generator for each use.

So a restart loses no position, and the order of events changes no draw. This module imports no torch, because the
coordinator uses it; models are initialised in `training.initialise`.
Source: docs/methods/README.md#random-numbers
"""

from enum import IntEnum

import numpy as np

Generator = np.random.Generator
"""The type of a stream, for annotations."""


class Stream(IntEnum):
    """Purpose of a draw. The numbers are part of every published result and never change."""

    PARTITION = 1  # once; and (1, class), (2, client) for data that changes during the run
    AVAILABILITY = 2  # client, round
    LATENCY = 3  # client, the client's task number
    BATCHES = 4  # client, the client's task number; and 0 after them for PyTorch's own draws
    # client, task id; 1 or 2 after them for an audit, 3 or 4 for a loss surface; client, version, 5 for changed data;
    # and (0) for an audit's intervals
    INVERSION = 5
    SELECTION = 6  # version; and tasks so far, if a version has several draws
    OWN_TEST_SETS = 7  # once
    TOXICS = 8  # toxic, then a message or a client: `unstale.toxics.rng`
    DEVICES = 9  # client: speed of its device
    AUDIENCES = 10  # group or toxic: which clients belong to a share
    SEARCH = 11  # draw, 32 bits of the key's name: a candidate of `unstale sweep`, with the seed of the search
    ATTACKS = 12  # once: which clients attack; and client, the client's task number for noise
    RENDERED = 13  # split, image: a data set that is rendered


def stream(seed: int, purpose: Stream, *key: int) -> Generator:
    """A PCG64 generator of its arguments only. seed: of the run, >= 0. key: as listed at `Stream`, >= 0."""
    try:  # the words of numpy's seed and spawn_key; saves 7 us
        words = np.array((seed, 0, 0, 0, int(purpose), *key), dtype=np.uint32)
    except OverflowError:  # one of them is over 32 bits
        sequence = np.random.SeedSequence(seed, spawn_key=(int(purpose), *key))
    else:
        sequence = np.random.SeedSequence(words)
    return Generator(np.random.PCG64(sequence))
