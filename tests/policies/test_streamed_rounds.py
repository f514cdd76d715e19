"""A policy that streams makes a bit-identical step from rows that it reads a few columns at a time."""

from dataclasses import replace

import pytest
import torch

from unstale.policies import Policy, UpdateBatch, create
from unstale.policies.registry import find, names
from unstale.policies.weights import wide_chunks
from unstale.seeds import Stream, stream

DIMENSION, CLIENTS, ROWS = 1_500_001, 4, 3


def policy(name: str) -> Policy:
    return create(
        name,
        dimension=DIMENSION,
        clients=CLIENTS,
        device=torch.device("cpu"),
        round_size=ROWS,
        rounds=3,
        **find(name).example_settings,
    )


STREAMING = [name for name in names() if find(name).column_wise]


def batch() -> UpdateBatch:
    draws = stream(0, Stream.BATCHES)
    return UpdateBatch(
        version=7,
        matrix_Kd=torch.from_numpy(draws.standard_normal((ROWS, DIMENSION), dtype="float32")),
        staleness_K=torch.tensor([0, 3, 1]),
        num_examples_K=torch.tensor([5, 1, 2]),
        loss_K=torch.ones(ROWS),
        client_ids_K=torch.tensor([2, 0, 3]),
        rate=0.5,
    )


def test_policies_that_only_weight_updates_stream() -> None:
    assert set(STREAMING) >= {"fedavg", "fedbuff", "twafl", "dynsgd", "sasgd", "weighted", "fedprox"}
    assert not {"fedhist", "wkafl", "krum", "fedar", "scaffold"} & set(STREAMING)


@pytest.mark.parametrize("name", STREAMING)
def test_a_streamed_step_is_bit_identical(name: str) -> None:
    whole = batch()
    read: list[tuple[int, int]] = []

    def columns(start: int, end: int) -> torch.Tensor:
        read.append((start, end))
        return whole.matrix_Kd[:, start:end].clone()

    streamed = replace(whole, matrix_Kd=torch.empty(ROWS, 0), columns=columns)
    expected, made = policy(name).step(whole), policy(name).step(streamed)
    assert torch.equal(made.direction_d, expected.direction_d)
    assert torch.equal(made.weights_K, expected.weights_K)
    assert made.rate_factor == expected.rate_factor
    chunks = list(wide_chunks(ROWS, DIMENSION, torch.device("cpu")))
    assert len(chunks) > 1
    assert read == [(chunk.start, chunk.stop) for chunk in chunks], "every column is read, once"
    assert all(4 * ROWS * (end - start) <= 16 * 1024**2 for start, end in read)


def test_a_part_is_a_range_of_columns_and_the_full_part_is_the_matrix_itself() -> None:
    subject = batch()
    assert subject.part(slice(0, DIMENSION)) is subject.matrix_Kd
    assert torch.equal(subject.part(slice(1, DIMENSION)), subject.matrix_Kd[:, 1:])
