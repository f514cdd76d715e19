"""The examples of clients, and the comparison of reconstructions with them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support import variant
from unstale.config import Settings
from unstale.config.data import ClientData, read_dataset
from unstale.config.workspace import training_context
from unstale.privacy.findings import POOLS, Matches, findings
from unstale.privacy.image_similarity import PSNR
from unstale.seeds import Stream, stream
from unstale.simulator.client_examples import ClientExamples, Examples, Pixels
from unstale.training.datasets import Dataset, Split
from unstale.training.datasets.dataset import Normalisation


def dataset(stored_NX: torch.Tensor, labels: list[int], **more: Any) -> Dataset:
    split = Split(stored_NX=stored_NX, labels_N=torch.tensor(labels))
    return Dataset(name="own", classes=3, train=split, test=split, **more)


def rows(examples: Examples) -> list[tuple[float, ...]]:
    return sorted(tuple(row) for row in examples.pixels_nX.flatten(1).tolist())


@pytest.mark.parametrize("normalise", ["standard", "unit", "raw"])
def test_pixels_are_bytes_over_their_maximum(normalise: str) -> None:
    data = read_dataset(Settings(data={"name": "digits", "normalise": normalise}).data)
    stored = data.train.stored_NX[:50].float()
    pixels = Pixels(data)(data.train_examples(torch.arange(50)))
    torch.testing.assert_close(pixels, stored / 16)


def test_pixels_of_floats_are_over_their_range() -> None:
    data = dataset(torch.tensor([[-1.0, 3.0], [1.0, 0.0], [0.0, 2.0]]), [0, 1, 2])
    assert Pixels(data)(torch.tensor([[-1.0, 3.0], [1.0, 5.0]])).tolist() == [[0.0, 1.0], [0.5, 1.0]]


def test_pixels_are_denormalized_by_channel_mean_and_deviation() -> None:
    normal = Normalisation(divisor=255, mean_C=(0.5, 0.25), std_C=(0.5, 0.25))
    stored = torch.tensor([[[[0]], [[255]]], [[[51]], [[102]]]], dtype=torch.uint8)
    data = dataset(stored, [0, 1], normalisation=normal)
    torch.testing.assert_close(Pixels(data)(data.train_examples()), stored / 255)
    assert Pixels(data)(torch.full((1, 2, 1, 1), -2.0)).flatten().tolist() == [0.0, 0.0]


def test_plain_data_is_all_black() -> None:
    assert Pixels(dataset(torch.ones(3, 2), [0, 1, 2]))(torch.ones(1, 2)).tolist() == [[0.0, 0.0]]


def own(client_examples: ClientExamples, client_id: int, version: int = 0) -> Examples:
    return client_examples.own_and_others(client_id, version, 1)[0]


@pytest.fixture
def settings() -> Settings:
    return Settings(clients=6, partition={"name": "dirichlet-client", "alpha": 0.5, "budget": 40})


def test_own_examples_are_the_training_examples_of_the_client(settings: Settings) -> None:
    context = training_context(settings)
    client_examples = ClientExamples(context.client_data)
    inputs_nX, labels_n = context.trainer.examples(2)
    held = own(client_examples, 2)
    trained_on = Examples(pixels_nX=client_examples.pixels(inputs_nX), labels_n=labels_n.numpy())
    assert rows(held) == rows(trained_on)
    assert sorted(held.labels_n) == sorted(trained_on.labels_n)


def test_other_examples_are_as_many_from_other_clients(settings: Settings) -> None:
    client_examples = ClientExamples(ClientData.of(settings, read_dataset(settings.data)))
    for client in range(6):
        held, others = client_examples.own_and_others(client, 0, 1)
        everybody_else = {row for other in range(6) if other != client for row in rows(own(client_examples, other))}
        assert len(others) == len(held)
        assert set(rows(others)) <= everybody_else
        assert not set(rows(others)) & set(rows(held))


def test_each_class_has_equal_numbers_of_own_and_other_examples(settings: Settings) -> None:
    client_examples = ClientExamples(ClientData.of(settings, read_dataset(settings.data)))
    held, others = client_examples.own_and_others_of_its_classes(1, 0, 1)
    total = np.bincount(np.concatenate([own(client_examples, client).labels_n for client in range(6)]), minlength=10)
    own_C = np.bincount(own(client_examples, 1).labels_n, minlength=10)
    expected = np.minimum(own_C, total - own_C).tolist()
    assert np.bincount(held.labels_n, minlength=10).tolist() == expected
    assert np.bincount(others.labels_n, minlength=10).tolist() == expected
    assert set(rows(held)) <= set(rows(own(client_examples, 1)))
    assert not set(rows(others)) & set(rows(own(client_examples, 1)))


@pytest.mark.parametrize("of_others", [8, 32, 128, 500])
def test_noise_is_equally_close_to_own_and_other_data(of_others: int, tmp_path: Path) -> None:
    drawn = stream(3, Stream.INVERSION, of_others)
    inputs, labels = drawn.random((640, 4), dtype=np.float32), drawn.integers(3, size=640)
    np.savez(tmp_path / "noise.npz", x_train=inputs, y_train=labels, x_test=inputs, y_test=labels)
    noise = Settings(clients=2, data={"name": "npz", "path": str(tmp_path / "noise.npz")})
    client_examples = ClientExamples(ClientData.of(noise, read_dataset(noise.data)))
    client_examples._shares = [np.arange(128), np.arange(128, 128 + of_others)]
    all_matches = []
    for task in range(1, 101):
        every = (
            *client_examples.own_and_others(0, 0, task),
            *client_examples.own_and_others_of_its_classes(0, 0, task),
        )
        made = torch.from_numpy(drawn.random((8, 4), dtype=np.float32))
        pools = dict(zip(POOLS, every, strict=True))
        best = {pool: PSNR.closest(made, held.pixels_nX)[0].double().numpy() for pool, held in pools.items()}
        all_matches.append(
            Matches(
                client_id=0,
                labels=[0] * 8,
                best={"psnr": best},
                pool_examples={pool: len(held) for pool, held in pools.items()},
                label_distance=dict.fromkeys(pools, 0.0),
            )
        )
    (found,) = findings(all_matches, [PSNR], drawn).measures
    for difference in found.closer.values():
        assert 0.4 <= difference.closer_share <= 0.6


def test_draws_repeat_and_differ_from_task_to_task(settings: Settings) -> None:
    data = read_dataset(settings.data)
    client_examples, again = (
        ClientExamples(ClientData.of(settings, data)),
        ClientExamples(ClientData.of(settings, data)),
    )
    _, others = client_examples.own_and_others(0, 0, 7)
    assert rows(others) == rows(again.own_and_others(0, 0, 7)[1])
    assert rows(others) != rows(client_examples.own_and_others(0, 0, 8)[1])


def test_an_example_of_the_client_is_not_among_the_others() -> None:
    few = {"name": "label-count", "smallest": 2, "largest": 2, "pool": 2}
    shared = Settings(clients=30, partition=few)  # 60 examples of ten classes of two
    client_examples = ClientExamples(ClientData.of(shared, read_dataset(shared.data)))
    for client in range(30):
        held, others = client_examples.own_and_others(client, 0, 1)
        assert not set(rows(held)) & set(rows(others))


def test_a_class_of_one_client_has_no_counterpart(tmp_path: Path) -> None:
    file = tmp_path / "three.npz"
    labels = np.repeat(np.arange(3), 20)
    inputs = np.arange(120, dtype=np.float32).reshape(60, 2)
    np.savez(file, x_train=inputs, y_train=labels, x_test=inputs, y_test=labels)
    alone = Settings(clients=3, data={"name": "npz", "path": str(file)}, partition={"name": "blocks"})
    client_examples = ClientExamples(ClientData.of(alone, read_dataset(alone.data)))
    assert list(map(len, client_examples.own_and_others(0, 0, 1))) == [20, 20]
    assert list(map(len, client_examples.own_and_others_of_its_classes(0, 0, 1))) == [0, 0]


def test_variant_data_is_taken_at_the_version(tmp_path: Path) -> None:
    changing = Settings(
        clients=3, data=variant.small_and_large(tmp_path), partition={"name": "iid"}, model={"name": "logreg"}
    )
    context = training_context(changing)
    client_examples = ClientExamples(context.client_data)
    before = own(client_examples, 1)
    for version in (0, 4, 9):
        inputs_nX, labels_n = context.trainer.examples(1, version)
        held, others = client_examples.own_and_others(1, version, 1)
        assert rows(held) == rows(Examples(pixels_nX=client_examples.pixels(inputs_nX), labels_n=labels_n.numpy()))
        assert (rows(held) == rows(before)) == (version == 0)
        assert len(others) == len(held)
