"""MNIST, FashionMNIST, EMNIST, CIFAR-10, CIFAR-100 and SVHN, in the files that torchvision keeps and checks.

The cache has torchvision's own layout, so a folder that was filled by torchvision can be used as one. What torchvision
unpickles (CIFAR) it has checked against its publisher's digest before.
"""

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unstale.errors import UserError
from unstale.training.datasets.dataset import Dataset
from unstale.training.datasets.source import Source, fetched, said

Part = tuple[Tensor, Tensor]
"""Images [N, C, H, W] uint8 and labels [N] int64."""

FILES = {
    "mnist": "MNIST/raw/*",
    "fashion-mnist": "FashionMNIST/raw/*",
    "emnist-mnist": "EMNIST/raw/emnist-mnist-*",
    "emnist-byclass": "EMNIST/raw/emnist-byclass-*",
    "cifar10": "cifar-10-batches-py/*",
    "cifar100": "cifar-100-python/*",
    "svhn": "*_32x32.mat",
}
"""For each data set a pattern of its files in the cache."""

CLASSES = {"emnist-byclass": 62, "cifar100": 100}
_UNREADABLE = (OSError, EOFError, ValueError, TypeError, LookupError, NotImplementedError, zlib.error)
WITH_WRITERS = ("emnist-byclass.mat", "matlab/emnist-byclass.mat")


def read(source: Source) -> Dataset:
    """The data set called `source.name`, one of FILES, images upright and channels first."""

    def parts(download: bool) -> tuple[Part, Part]:
        return _part(source, train=True, download=download), _part(source, train=False, download=download)

    (train_NCHW, labels_N), (test_MCHW, labels_M) = fetched(
        source, FILES[source.name], read=lambda: parts(False), download=lambda: parts(True)
    )
    return Dataset(
        name=source.name,
        classes=CLASSES.get(source.name, 10),
        stored_train_NX=train_NCHW,
        labels_train_N=labels_N,
        stored_test_MX=test_MCHW,
        labels_test_M=labels_M,
        origin=f"{source.folder}/{FILES[source.name]}",
    )


def read_byclass(source: Source) -> Dataset:
    """EMNIST ByClass: with its writers from the .mat file of the release where the cache has it, else without."""
    for name in WITH_WRITERS:
        if (source.folder / name).is_file():
            return _read_mat(source, source.folder / name)
    return read(source)


def _part(source: Source, *, train: bool, download: bool) -> Part:
    from torchvision import datasets  # slow to import

    name, root = source.name, source.folder
    if name == "svhn":
        svhn = datasets.SVHN(root, split="train" if train else "test", download=download)
        return _tensors(svhn.data, svhn.labels)
    if name in ("cifar10", "cifar100"):
        cifar = (datasets.CIFAR10 if name == "cifar10" else datasets.CIFAR100)(root, train, download=download)
        return _tensors(cifar.data.transpose(0, 3, 1, 2), np.array(cifar.targets))
    if name.startswith("emnist-"):
        emnist = datasets.EMNIST(root, name.removeprefix("emnist-"), train=train, download=download)
        return emnist.data.transpose(1, 2).contiguous()[
            :, None
        ], emnist.targets  # columns come first in the files
    mnist = (datasets.MNIST if name == "mnist" else datasets.FashionMNIST)(root, train, download=download)
    return mnist.data[:, None], mnist.targets


def _tensors(images_NCHW: Any, labels_N: Any) -> Part:
    return torch.from_numpy(np.ascontiguousarray(images_NCHW)), torch.from_numpy(labels_N.astype(np.int64))


def _read_mat(source: Source, path: Path) -> Dataset:
    """`dataset.train` and `dataset.test`, each with images [N, 784] (columns first), labels and writers [N, 1]."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        stored = loadmat(path, simplify_cells=True)["dataset"]
        train, test = (
            {
                "images": torch.from_numpy(np.ascontiguousarray(_upright(stored[part]["images"]))),
                "labels": torch.from_numpy(stored[part]["labels"].reshape(-1).astype(np.int64)),
                "writers": torch.from_numpy(stored[part]["writers"].reshape(-1).astype(np.int64)),
            }
            for part in ("train", "test")
        )
    except (*_UNREADABLE, MatReadError) as error:
        raise UserError(
            f"{path}: cannot be read as EMNIST ByClass with writers ({said(error)}); delete it, or put the file of the "
            "release (matlab.zip) in its place"
        ) from error
    return Dataset(
        name=source.name,
        classes=CLASSES[source.name],
        stored_train_NX=train["images"],
        labels_train_N=train["labels"],
        stored_test_MX=test["images"],
        labels_test_M=test["labels"],
        groups_train_N=train["writers"],
        groups_test_M=test["writers"],
        origin=str(path),
    )


def _upright(images_ND: Any) -> Any:
    if images_ND.dtype != np.uint8:
        raise TypeError(f"images are {images_ND.dtype}, expected uint8")
    return images_ND.reshape(-1, 1, 28, 28).transpose(0, 1, 3, 2)
