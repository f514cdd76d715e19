"""CelebA: whether the celebrity smiles. Differences from LEAF's data/celeba are documented in `read`.

Source: LEAF (Caldas et al., 2018), docs/methods/partitions.md#natural
"""

import hashlib
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

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

    identities, smiles = fetched(
        source, FILES, read=lambda: _lists(folder), download=download, needs="pip install gdown"
    )
    train, test = _split(identities)
    names = list(identities)
    files = [folder / _IMAGES / names[row] for row in (*train, *test)]
    images_NCHW = torch.from_numpy(_pixels(folder, files))
    groups_N = torch.tensor(list(identities.values()), dtype=torch.int64)
    labels_N = torch.tensor([smiles[name] for name in names], dtype=torch.int64)

    def split(images_NCHW: Tensor, rows: NDArray[np.int64]) -> Split:
        return Split(stored_NX=images_NCHW, labels_N=labels_N[rows], groups_N=groups_N[rows])

    return Dataset(
        name=source.name,
        classes=2,
        train=split(images_NCHW[: len(train)], train),
        test=split(images_NCHW[len(train) :], test),
        origin=str(folder),
    )


def _lists(folder: Path) -> tuple[dict[str, int], dict[str, int]]:
    """By name of the image: the number of the celebrity, and 1 for smiling or 0.

    Raises an exception of reading or parsing for lists that do not have the format of the release.
    """
    identities = {name: int(number) for name, number in _fields(folder / _IDENTITIES)}
    _, header, *rows = _fields(folder / _ATTRIBUTES)
    column = header.index("Smiling") + 1
    smiles = {row[0]: int(int(row[column]) > 0) for row in rows}
    lacking = next((name for name in identities if name not in smiles), None)
    if not identities or lacking:
        raise ValueError(f"{_ATTRIBUTES} has no {lacking or 'image'}")
    if not (folder / _IMAGES).is_dir():
        raise ValueError(f"there is no {_IMAGES}")
    return identities, smiles


def _fields(path: Path) -> list[list[str]]:
    """The words of each line that is not empty."""
    lines = path.read_text(encoding="ascii").splitlines()
    return [line.split() for line in lines if line.strip()]


def _split(identities: dict[str, int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows of the identity list that are training and test examples, ascending."""
    rows_of: dict[int, list[int]] = {}
    for row, number in enumerate(identities.values()):
        rows_of.setdefault(number, []).append(row)
    train, test = [], []
    for rows in rows_of.values():
        if len(rows) >= LEAST:
            trained = len(rows) * 9 // 10
            train += rows[:trained]
            test += rows[trained:]
    if not train:
        raise UserError(f"{_IDENTITIES} has no celebrity with {LEAST} images or more, as all of CelebA has")
    return np.sort(np.array(train, dtype=np.int64)), np.sort(np.array(test, dtype=np.int64))


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
