"""scikit-learn's digits, and MNIST, FashionMNIST, EMNIST, CIFAR-10, CIFAR-100 and SVHN in torchvision's layout.

The cache may be a folder that torchvision filled. torchvision unpickles only files (CIFAR) whose digest is the
publisher's.
"""

import zlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unstale.errors import UserError
from unstale.training.datasets.dataset import Dataset, Split
from unstale.training.datasets.source import Source, fetched, reason_of

FILES = {
    "mnist": "MNIST/raw/*",
    "fashion-mnist": "FashionMNIST/raw/*",
    "emnist-mnist": "EMNIST/raw/emnist-mnist-*",
    "emnist-byclass": "EMNIST/raw/emnist-byclass-*",
    "cifar10": "cifar-10-batches-py/*",
    "cifar100": "cifar-100-python/*",
    "svhn": "*_32x32.mat",
}
"""Pattern of the files in the cache, by data set."""

CLASSES = {"emnist-byclass": 62, "cifar100": 100}  # 10 for all others
BYCLASS_MAT_FILES = ("emnist-byclass.mat", "matlab/emnist-byclass.mat")
_MAT_ERRORS = (OSError, EOFError, ValueError, TypeError, LookupError, AttributeError, NotImplementedError, zlib.error)


def read_digits(source: Source) -> Dataset:
    """1,797 handwritten digits of 8x8 pixels with values 0 to 16: 1,442 training and 355 test examples.

    Every fifth image of each class, in stored order, is a test image, so both splits have the same class shares.
    """
    stored_NX = np.loadtxt(_scikit_learn() / "datasets/data/digits.csv.gz", dtype=np.uint8, delimiter=",")
    images_NCHW = torch.from_numpy(stored_NX[:, :64].reshape(-1, 1, 8, 8))
    labels_N = torch.from_numpy(stored_NX[:, 64].astype(np.int64))
    is_test_N = torch.zeros(len(labels_N), dtype=torch.bool)
    for label in range(10):
        is_test_N[torch.nonzero(labels_N == label)[4::5]] = True
    examples = Split(stored_NX=images_NCHW, labels_N=labels_N)
    return Dataset(
        name=source.name,
        classes=10,
        train=examples.at(~is_test_N),
        test=examples.at(is_test_N),
        levels=16,
        origin="built into scikit-learn",
    )


def _scikit_learn() -> Path:
    """Its folder. To import it takes half as long as to import PyTorch, and no data set needs its code."""
    spec = find_spec("sklearn")
    assert spec is not None and spec.origin is not None, "a dependency"
    return Path(spec.origin).parent


def read(source: Source) -> Dataset:
    """The data set `source.name`, a key of FILES, with upright images and channels first."""

    def splits(download: bool) -> list[Split]:
        return [_split(source, is_train=is_train, download=download) for is_train in (True, False)]

    train, test = fetched(source, FILES[source.name], read=lambda: splits(False), download=lambda: splits(True))
    return Dataset(
        name=source.name,
        classes=CLASSES.get(source.name, 10),
        train=train,
        test=test,
        origin=f"{source.folder}/{FILES[source.name]}",
    )


def read_byclass(source: Source) -> Dataset:
    """EMNIST ByClass, with writers as groups if the cache has NIST's .mat file."""
    for name in BYCLASS_MAT_FILES:
        if (source.folder / name).is_file():
            return _read_mat(source, source.folder / name)
    return read(source)


def _split(source: Source, *, is_train: bool, download: bool) -> Split:
    from torchvision import datasets  # slow to import

    name, root = source.name, source.folder
    if name == "svhn":
        svhn = datasets.SVHN(root, split="train" if is_train else "test", download=download)
        return _split_from_arrays(svhn.data, svhn.labels)
    if name in ("cifar10", "cifar100"):
        cifar = (datasets.CIFAR10 if name == "cifar10" else datasets.CIFAR100)(root, is_train, download=download)
        return _split_from_arrays(cifar.data.transpose(0, 3, 1, 2), np.array(cifar.targets))
    if name.startswith("emnist-"):
        emnist = datasets.EMNIST(root, name.removeprefix("emnist-"), train=is_train, download=download)
        images_NHW = emnist.data.transpose(1, 2).contiguous()  # the files store columns first
        return Split(stored_NX=images_NHW[:, None], labels_N=emnist.targets)
    mnist = (datasets.MNIST if name == "mnist" else datasets.FashionMNIST)(root, is_train, download=download)
    return Split(stored_NX=mnist.data[:, None], labels_N=mnist.targets)


def _split_from_arrays(images_NCHW: Any, labels_N: Any, groups_N: Any = None) -> Split:
    return Split(
        stored_NX=torch.from_numpy(np.ascontiguousarray(images_NCHW)),
        labels_N=torch.from_numpy(labels_N.astype(np.int64)),
        groups_N=None if groups_N is None else torch.from_numpy(groups_N.astype(np.int64)),
    )


def _read_mat(source: Source, path: Path) -> Dataset:
    """Read `dataset.train` and `dataset.test`: images [N, 784] (columns first), labels and writers [N, 1]."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        stored = loadmat(path, simplify_cells=True)["dataset"]
        train, test = (
            _split_from_arrays(_upright_images(part["images"]), part["labels"].reshape(-1), part["writers"].reshape(-1))
            for part in (stored["train"], stored["test"])
        )
    except (*_MAT_ERRORS, MatReadError) as error:
        raise UserError(
            f"{path}: cannot be read as EMNIST ByClass with writers ({reason_of(error)}); delete it, or put the file "
            "of the release (matlab.zip) in its place"
        ) from error
    return Dataset(name=source.name, classes=CLASSES[source.name], train=train, test=test, origin=str(path))


def _upright_images(images_ND: Any) -> Any:
    if images_ND.dtype != np.uint8:
        raise TypeError(f"images are {images_ND.dtype}, expected uint8")
    return images_ND.reshape(-1, 1, 28, 28).transpose(0, 1, 3, 2)
