"""Every random number of a run comes from here: one seed, one stream a purpose, one generator a use.

A generator is made for each use and never carried from one to the next, so that a restart loses no position
and the order in which things happen changes no draw.
This module imports no torch, because the coordinator draws from it; models are initialised in `training.initialise`.
Source: docs/methods/README.md#random-numbers
"""

from enum import IntEnum

import numpy as np

Generator = np.random.Generator
"""The type of a stream, for annotations."""


class Stream(IntEnum):
    """What a draw is for. The numbers are part of every published result and never change."""

    PARTITION = 1  # once; and (1, class), (2, client) for data that changes during the run
    AVAILABILITY = 2  # client, round
    LATENCY = 3  # client, the client's task number
    BATCHES = 4  # client, the client's task number; and 0 behind them for what PyTorch draws itself
    # client, task id; 1 or 2 behind them for what an audit draws, 3 or 4 for a loss surface; client, version, 5 for
    # what changes of its data; and (0) for an audit's intervals
    INVERSION = 5
    SELECTION = 6  # version; and tasks given so far, where a version sees several draws
    OWN_TEST_SETS = 7  # once
    TOXICS = 8  # toxic, then a message or a client: `unstale.toxics.rng`
    DEVICES = 9  # client: how fast its device is
    AUDIENCES = 10  # group or toxic: which clients are a share of all
    SEARCH = 11  # draw, 32 bits of the key's name: a candidate of `unstale sweep`; the seed is the search's
    ATTACKS = 12  # once: which clients attack; and client, the client's task number for noise


def stream(seed: int, purpose: Stream, *key: int) -> Generator:
    """A PCG64 generator that depends on nothing but its arguments.

    seed: the run's seed, >= 0. key: what the draw belongs to, as listed at `Stream`, each >= 0.
    """
    try:  # the words that numpy would make of seed and spawn_key; 7 us less
        words = np.array((seed, 0, 0, 0, int(purpose), *key), dtype=np.uint32)
    except OverflowError:  # one of them is over 32 bits
        sequence = np.random.SeedSequence(seed, spawn_key=(int(purpose), *key))
    else:
        sequence = np.random.SeedSequence(words)
    return Generator(np.random.PCG64(sequence))
