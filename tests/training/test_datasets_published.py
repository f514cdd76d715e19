"""Small files of the formats that the publishers use, laid out as torchvision keeps them."""

import gzip
import hashlib
import pickle  # noqa: TID251  CIFAR is published as pickles
import struct
import urllib.request
import zipfile
from urllib.error import URLError

import numpy as np
import pytest
import torch
from scipy.io import savemat
from torchvision import datasets

from unstale.errors import UserError
from unstale.training.datasets import DATASETS, load, varied

LABELS = {"train": [3, 0, 9, 1], "test": [5, 0]}


@pytest.fixture(autouse=True)
def requests(monkeypatch):
    """Every address that is asked for; there is no network."""
    asked = []

    def refuse(request, *args, **options):
        asked.append(request.full_url)
        raise URLError("no route to host")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    return asked


def pictures(part, *shape):
    """Bytes that differ from place to place and from part to part."""
    size = (len(LABELS[part]), *shape)
    return (np.arange(np.prod(size)) * 7 + len(part)).astype(np.uint8).reshape(size)


def idx(array):
    """The IDX format: zeros, 8 for bytes, the number of dimensions, the sizes (big-endian), the bytes."""
    sizes = b"".join(struct.pack(">I", size) for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def md5(content):
    return hashlib.md5(content).hexdigest()


def write_idx(folder, prefixes, images):
    folder.mkdir(parents=True, exist_ok=True)
    for part, prefix in prefixes.items():
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(idx(images[part]))
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(idx(np.array(LABELS[part])))


def upright():
    return {part: pictures(part, 28, 28) for part in LABELS}


def transposed():
    return {part: images.transpose(0, 2, 1) for part, images in upright().items()}


MNIST_FILES = {"train": "train", "test": "t10k"}
EMNIST_FILES = {part: f"emnist-mnist-{part}" for part in LABELS}
BYCLASS_FILES = {part: f"emnist-byclass-{part}" for part in LABELS}


@pytest.mark.parametrize(
    ("name", "folder", "mean", "std"),
    [("mnist", "MNIST", 0.1307, 0.3081), ("fashion-mnist", "FashionMNIST", 0.2860, 0.3530)],
)
def test_mnist_and_fashion_mnist_with_their_published_constants(tmp_path, name, folder, mean, std):
    write_idx(tmp_path / folder / "raw", MNIST_FILES, upright())
    dataset = load(name, cache=str(tmp_path))
    assert (dataset.name, dataset.classes, dataset.input_shape) == (name, 10, (1, 28, 28))
    assert dataset.train.stored_NX.dtype == torch.uint8
    assert dataset.train.labels_N.tolist() == LABELS["train"]
    assert dataset.test.labels_N.tolist() == LABELS["test"]
    expected = (upright()["test"][:, None] / 255 - mean) / std
    np.testing.assert_allclose(dataset.test_examples().numpy(), expected, atol=1e-6)
    raw = load(name, cache=str(tmp_path), normalise="raw").train_examples()
    assert np.array_equal(raw.numpy(), upright()["train"][:, None].astype(np.float32))


@pytest.mark.parametrize(
    ("name", "files", "classes"), [("emnist-mnist", EMNIST_FILES, 10), ("emnist-byclass", BYCLASS_FILES, 62)]
)
def test_emnist_is_stood_upright(tmp_path, name, files, classes):
    write_idx(tmp_path / "EMNIST" / "raw", files, transposed())
    dataset = load(name, cache=str(tmp_path))
    assert dataset.classes == classes
    assert np.array_equal(dataset.train.stored_NX.numpy(), upright()["train"][:, None])
    assert dataset.train.stored_NX.is_contiguous()
    assert dataset.train.groups_N is None
    # Not published: computed from the training part.
    inputs = dataset.train_examples().double()
    assert inputs.mean().item() == pytest.approx(0, abs=1e-6)
    assert inputs.std(correction=0).item() == pytest.approx(1, abs=1e-6)


def release(upright_images, **changes):
    """The structure of the .mat release: images [N, 784] with columns first, labels and writers [N, 1]."""
    writers = {"train": [2, 1, 2, 7], "test": [7, 2]}
    parts = {
        part: {
            "images": upright_images[part].transpose(0, 2, 1).reshape(-1, 784),
            "labels": np.array([LABELS[part]], dtype=np.uint8).T,
            "writers": np.array([writers[part]], dtype=np.uint16).T,
        }
        for part in LABELS
    }
    parts["train"].update(changes)
    return {"dataset": {**parts, "mapping": np.zeros((62, 2), dtype=np.uint8)}}


@pytest.mark.parametrize("place", ["emnist-byclass.mat", "matlab/emnist-byclass.mat"])
def test_emnist_byclass_has_writers_where_the_mat_file_of_the_release_is(tmp_path, place):
    (tmp_path / place).parent.mkdir(exist_ok=True)
    savemat(tmp_path / place, release(upright()), do_compression=True)
    write_idx(tmp_path / "EMNIST" / "raw", BYCLASS_FILES, transposed())
    dataset = load("emnist-byclass", cache=str(tmp_path))
    assert np.array_equal(dataset.test.stored_NX.numpy(), upright()["test"][:, None])
    assert dataset.train.labels_N.tolist() == LABELS["train"]
    assert dataset.train.groups_N.tolist() == [2, 1, 2, 7]
    assert dataset.test.groups_N.tolist() == [7, 2]
    assert dataset.classes == 62


def test_a_mat_file_that_is_torn_or_something_else_is_refused(tmp_path):
    path = tmp_path / "emnist-byclass.mat"
    for write in (
        lambda: savemat(path, release(upright(), images=np.zeros((4, 784)))),
        lambda: savemat(path, release(upright(), images=np.zeros((4, 700), dtype=np.uint8))),
        lambda: savemat(path, {"other": 1}),
        lambda: savemat(path, {"dataset": {part: {"images": "text"} for part in ("train", "test")}}),
        lambda: path.write_bytes(b"no MATLAB at all" * 20),
        lambda: path.write_bytes(b""),
    ):
        write()
        with pytest.raises(UserError, match=r"cannot be read as EMNIST ByClass with writers \(.+\); delete"):
            load("emnist-byclass", cache=str(tmp_path))
    savemat(path, release(upright()), do_compression=True)
    flipped = bytearray(path.read_bytes())
    flipped[-1] ^= 1
    path.write_bytes(flipped)
    with pytest.raises(UserError, match=r"incorrect data check"):
        load("emnist-byclass", cache=str(tmp_path))
    flipped[-1] ^= 1
    path.write_bytes(flipped)
    for kept in (100, 200, 1000, -1000):
        whole = path.read_bytes()
        path.write_bytes(whole[:kept])
        with pytest.raises(UserError, match=r"cannot be read as EMNIST ByClass with writers"):
            load("emnist-byclass", cache=str(tmp_path))
        path.write_bytes(whole)


def write_cifar(folder, monkeypatch, kind, batches, label_key):
    """Python 2 style batches, and their digests in the place of the published ones."""
    folder.mkdir(exist_ok=True)

    def written(name, content):
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
        return [name, md5((folder / name).read_bytes())]

    lists = {
        part: [
            written(name, {"data": rows, label_key: labels, "batch_label": name})
            for name, rows, labels in batches[part]
        ]
        for part in LABELS
    }
    meta = written(kind.meta["filename"], {kind.meta["key"]: ["a class"]})
    monkeypatch.setattr(kind, "train_list", lists["train"])
    monkeypatch.setattr(kind, "test_list", lists["test"])
    monkeypatch.setattr(kind, "meta", {**kind.meta, "md5": meta[1]})


def flat(part):
    """A row holds the 1024 red bytes of an image, then the green, then the blue."""
    return pictures(part, 3, 32, 32).reshape(-1, 3072)


CIFAR10_BATCHES = {
    "train": [
        ("data_batch_1", flat("train")[:3], LABELS["train"][:3]),
        ("data_batch_2", flat("train")[3:], LABELS["train"][3:]),
    ],
    "test": [("test_batch", flat("test"), LABELS["test"])],
}


def test_cifar10(tmp_path, monkeypatch):
    write_cifar(tmp_path / "cifar-10-batches-py", monkeypatch, datasets.CIFAR10, CIFAR10_BATCHES, "labels")
    dataset = load("cifar10", cache=str(tmp_path))
    assert (dataset.classes, dataset.input_shape) == (10, (3, 32, 32))
    assert np.array_equal(dataset.train.stored_NX.numpy(), pictures("train", 3, 32, 32))
    assert dataset.train.labels_N.tolist() == LABELS["train"]
    green = (pictures("test", 3, 32, 32)[:, 1] / 255 - 0.4832) / 0.2435
    np.testing.assert_allclose(dataset.test_examples()[:, 1].numpy(), green, atol=1e-5)


def test_cifar100_has_its_fine_labels(tmp_path, monkeypatch):
    batches = {part: [(part, flat(part), LABELS[part])] for part in LABELS}
    write_cifar(tmp_path / "cifar-100-python", monkeypatch, datasets.CIFAR100, batches, "fine_labels")
    dataset = load("cifar100", cache=str(tmp_path))
    assert dataset.classes == 100
    assert np.array_equal(dataset.test.stored_NX.numpy(), pictures("test", 3, 32, 32))
    assert dataset.test.labels_N.tolist() == LABELS["test"]


class Evil:
    """Unpickling this would print."""

    def __reduce__(self):
        return print, ("unpickled",)


def test_a_batch_with_another_digest_than_the_published_one_is_not_unpickled(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "cifar-10-batches-py"
    write_cifar(folder, monkeypatch, datasets.CIFAR10, CIFAR10_BATCHES, "labels")
    for name in ("data_batch_2", "test_batch", "batches.meta"):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(pickle.dumps(Evil(), protocol=2))
        with pytest.raises(UserError, match=r"^data set 'cifar10' is not whole in .*; delete cifar-10-batche"):
            load("cifar10", cache=str(tmp_path))
        assert "unpickled" not in capsys.readouterr().out
        (folder / name).write_bytes(whole)


def write_svhn(folder, monkeypatch, *, packed=True):
    """MATLAB 5.0 files: X [32, 32, 3, N] bytes, y [N, 1] with 10 for the digit 0; their digests as published."""
    written = {}
    for part, labels in LABELS.items():
        path = folder / f"{part}_32x32.mat"
        column = np.array([[10 if label == 0 else label for label in labels]], dtype=np.uint8).T
        images = pictures(part, 3, 32, 32).transpose(2, 3, 1, 0)
        savemat(path, {"X": images, "y": column}, format="5", do_compression=packed)
        written[part] = ["", path.name, md5(path.read_bytes())]
    monkeypatch.setattr(datasets.SVHN, "split_list", written)


@pytest.mark.parametrize("packed", [True, False])
def test_svhn_counts_its_digits_from_0(tmp_path, monkeypatch, packed):
    write_svhn(tmp_path, monkeypatch, packed=packed)
    dataset = load("svhn", cache=str(tmp_path))
    assert np.array_equal(dataset.train.stored_NX.numpy(), pictures("train", 3, 32, 32))
    assert dataset.train.labels_N.tolist() == LABELS["train"]
    assert dataset.test.labels_N.tolist() == LABELS["test"]


def test_a_truncated_file_of_svhn_is_not_reported_as_missing(tmp_path, monkeypatch):
    write_svhn(tmp_path, monkeypatch)
    path = tmp_path / "test_32x32.mat"
    whole = path.read_bytes()
    for kept in (0, 100, len(whole) - 1):
        path.write_bytes(whole[:kept])
        with pytest.raises(UserError, match=r"^data set 'svhn' is not whole in .*; delete \*_32x32\.mat there"):
            load("svhn", cache=str(tmp_path))


def test_mnist_gives_way_to_svhn(tmp_path, monkeypatch):
    write_idx(tmp_path / "MNIST" / "raw", MNIST_FILES, upright())
    write_svhn(tmp_path, monkeypatch)
    mnist, svhn = (load(name, cache=str(tmp_path)) for name in ("mnist", "svhn"))
    both = varied(mnist, svhn, rate=0.25, normalise="standard")
    assert (both.classes, both.input_shape) == (10, (3, 32, 32))
    seen = both.train_examples()
    assert torch.equal(seen[:, 0], seen[:, 1]) and torch.equal(seen[:, 0], seen[:, 2])
    expected = (pictures("train", 3, 32, 32) / 255 - 0.5) / 0.25
    np.testing.assert_allclose(both.later_examples().numpy(), expected, atol=1e-6)
    assert both.test.labels_N.tolist() == [*LABELS["test"], *LABELS["test"]]
    # The centre of pixel 15 of 32 is that of (15 + 1/2) * 28/32 - 1/2 = 13 + 1/16 of 28, in both directions.
    weights = np.array([15 / 16, 1 / 16])
    corner = upright()["train"][0, 13:15, 13:15].astype(float)
    level = (weights @ corner @ weights / 255 - 0.5) / 0.25
    assert seen[0, 0, 15, 15].item() == pytest.approx(level, abs=0.5 / 255 / 0.25 + 1e-6)


IN_CACHE = [name for name in DATASETS if name not in ("digits", "npz", "folder")]


@pytest.mark.parametrize("name", IN_CACHE)
def test_a_data_set_that_is_not_there_names_the_command_that_gets_it(tmp_path, name, requests):
    cache = str(tmp_path / "no such folder")
    first = "pip install gdown && " if name == "celeba" else ""
    with pytest.raises(UserError) as caught:
        load(name, cache=cache)
    assert str(caught.value) == (
        f"data set {name!r} is not in {cache}; get it with: "
        f"{first}unstale data show {name} --cache '{cache}' --download, or set data.download"
    )
    assert requests == []
    assert not (tmp_path / "no such folder").exists()


@pytest.mark.parametrize("name", IN_CACHE)
def test_a_failed_download_has_an_error_of_one_sentence(tmp_path, name):
    with pytest.raises(UserError) as caught:
        load(name, cache=str(tmp_path), download=True)
    sentence = str(caught.value)
    assert sentence.startswith(f"data set {name!r} cannot be downloaded to {tmp_path} (")
    assert ("gdown" if name == "celeba" else "no route to host") in sentence
    assert "\n" not in sentence


def test_a_download_asks_for_nothing_that_is_there(tmp_path, requests):
    write_idx(tmp_path / "MNIST" / "raw", MNIST_FILES, upright())
    assert len(load("mnist", cache=str(tmp_path), download=True).train.labels_N) == 4
    assert requests == []


def test_a_truncated_file_is_not_reported_as_missing(tmp_path):
    write_idx(tmp_path / "MNIST" / "raw", MNIST_FILES, upright())
    path = tmp_path / "MNIST" / "raw" / "t10k-images-idx3-ubyte"
    for kept in (0, 3, 10, 1000):
        path.write_bytes(path.read_bytes()[:kept])
        with pytest.raises(UserError, match=r"^data set 'mnist' is not whole in .*; delete MNIST/raw/\* there"):
            load("mnist", cache=str(tmp_path))
    with pytest.raises(UserError, match=r"cannot be downloaded .* delete MNIST/raw/\* there and try again"):
        load("mnist", cache=str(tmp_path), download=True)


def test_labels_that_do_not_fit_are_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(LABELS, "train", [3, 0, 10, 1])
    write_idx(tmp_path / "MNIST" / "raw", MNIST_FILES, upright())
    with pytest.raises(UserError, match=r"^data set 'mnist' has training labels from 0 to 10, expected 0 to 9"):
        load("mnist", cache=str(tmp_path))


def test_compressed_files_are_unpacked_by_a_download_and_then_read_without(tmp_path, monkeypatch, requests):
    raw = tmp_path / "MNIST" / "raw"
    write_idx(raw, MNIST_FILES, upright())
    resources = []
    for path in sorted(raw.iterdir()):
        packed = gzip.compress(path.read_bytes())
        (raw / f"{path.name}.gz").write_bytes(packed)
        resources.append((f"{path.name}.gz", md5(packed)))
        path.unlink()
    monkeypatch.setattr(datasets.MNIST, "resources", resources)
    with pytest.raises(UserError, match=r"^data set 'mnist' is not whole"):
        load("mnist", cache=str(tmp_path))
    load("mnist", cache=str(tmp_path), download=True)
    assert np.array_equal(load("mnist", cache=str(tmp_path)).test.stored_NX.numpy(), upright()["test"][:, None])
    assert requests == []


def test_emnist_is_unpacked_from_its_one_archive(tmp_path, monkeypatch, requests):
    raw = tmp_path / "EMNIST" / "raw"
    write_idx(raw, EMNIST_FILES, transposed())
    with zipfile.ZipFile(raw / "gzip.zip", "w") as archive:
        for path in sorted(raw.glob("emnist-*")):
            archive.writestr(f"gzip/{path.name}.gz", gzip.compress(path.read_bytes()))
            path.unlink()
    monkeypatch.setattr(datasets.EMNIST, "md5", md5((raw / "gzip.zip").read_bytes()))
    dataset = load("emnist-mnist", cache=str(tmp_path), download=True)
    assert np.array_equal(dataset.train.stored_NX.numpy(), upright()["train"][:, None])
    assert requests == []
