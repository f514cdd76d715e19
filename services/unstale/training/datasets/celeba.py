"""CelebA: whether the celebrity smiles. Differences from LEAF's data/celeba are documented in `read`.

Source: LEAF (Caldas et al., 2018), docs/methods/partitions.md#natural
"""

import hashlib
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unstale.errors import UserError
from unstale.training.datasets.dataset import Dataset, Split
from unstale.training.datasets.images import Pixels, decoded
from unstale.training.datasets.source import Source, fetched, reason_of

FILES = "celeba/*"
SIDE = 84
LEAST = 5  # images of a celebrity, as LEAF has it

_IDENTITIES, _ATTRIBUTES, _IMAGES = "identity_CelebA.txt", "list_attr_celeba.txt", "img_align_celeba"


def read(source: Source) -> Dataset:
    """84x84 RGB images, label 1 for smiling and 0 for not, the celebrity as the group; in torchvision's layout.

    As in LEAF, celebrities with fewer than 5 images are left out, and floor(0.9 n) of each one's n images are training
    examples, so that both splits have the same celebrities. LEAF draws them; here the last images of the list, which
    is not sorted by faces, are test examples. The partition of the release (list_eval_partition.txt) has other
    celebrities in the test and is not used.

    The decoded pixels are stored beside the lists as unstale-84-<digest of the lists>.npy, about 4 GB for all of
    CelebA, which each process maps into memory. Delete the file if you change images but not the lists. If the folder
    is not writable, each start decodes again.
    """
    folder = source.folder / "celeba"

    def download() -> None:
        from torchvision import datasets  # slow to import

        datasets.CelebA(source.folder, download=True)

    images = fetched(source, FILES, read=lambda: _lists(folder), download=download, needs="pip install gdown")
    earlier, sizes = images.groupby("celebrity").cumcount(), images.groupby("celebrity")["celebrity"].transform("size")
    is_train = (sizes >= LEAST) & (earlier < sizes * 9 // 10)
    train, test = np.flatnonzero(is_train), np.flatnonzero((sizes >= LEAST) & ~is_train)
    if not len(train):
        raise UserError(f"{_IDENTITIES} has no celebrity with {LEAST} images or more, as all of CelebA has")
    files = [folder / _IMAGES / images.index[row] for row in (*train, *test)]
    images_NCHW = torch.from_numpy(_pixels(folder, files))

    def split(images_NCHW: Tensor, rows: NDArray[np.int64]) -> Split:
        labels_N, groups_N = (torch.tensor(images[column].to_numpy()[rows]) for column in ("smiles", "celebrity"))
        return Split(stored_NX=images_NCHW, labels_N=labels_N, groups_N=groups_N)

    return Dataset(
        name=source.name,
        classes=2,
        train=split(images_NCHW[: len(train)], train),
        test=split(images_NCHW[len(train) :], test),
        origin=str(folder),
    )


def _lists(folder: Path) -> Any:
    """A table with the `celebrity` of each image, by name, and `smiles`, 1 or 0.

    Raises an exception of reading or parsing for lists that do not have the format of the release.
    """
    import pandas as pd  # slow to import

    images = pd.read_csv(folder / _IDENTITIES, sep=r"\s+", names=["name", "celebrity"], index_col="name")
    attributes = pd.read_csv(folder / _ATTRIBUTES, sep=r"\s+", skiprows=1)  # the first column has no heading
    images["smiles"] = attributes.loc[images.index, "Smiling"].astype("int64") > 0
    if not len(images) or not (folder / _IMAGES).is_dir():
        raise ValueError(f"there is no {_IMAGES}, or no image in the lists")
    return images.astype("int64")


def _pixels(folder: Path, files: list[Path]) -> Pixels:
    """The images [N, 3, 84, 84], from the file of an earlier start if there is one."""
    lists = hashlib.sha256()
    for name in (_IDENTITIES, _ATTRIBUTES):
        lists.update((folder / name).read_bytes())
    target = folder / f"unstale-{SIDE}-{lists.hexdigest()[:12]}.npy"
    if target.is_file():
        return _mapped(target, len(files))
    images = decoded(files, square=SIDE, colour=True)
    # Without a writable folder, or on a full disk, the next start decodes again.
    with suppress(OSError), TemporaryDirectory(prefix=".unstale-", dir=folder) as temporary:
        np.save(Path(temporary) / target.name, images)
        (Path(temporary) / target.name).replace(target)  # atomic, also if two processes do it at the same time
    return images


def _mapped(path: Path, examples: int) -> Pixels:
    try:
        images: Pixels = np.load(path, mmap_mode="c")  # torch accepts "c" without a warning
        if images.dtype != np.uint8 or images.shape != (examples, 3, SIDE, SIDE):
            raise ValueError(f"{images.dtype} {list(images.shape)}, expected {examples} images")
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{path}: cannot be read ({reason_of(error)}); delete it to have it made again") from error
    return images
