"""CelebA: does the celebrity smile?

Where this differs from LEAF's data/celeba is named below.
Source: LEAF (Caldas et al., 2018), docs/methods/partitions.md#natural
"""

import hashlib
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray

from unstale.errors import UserError
from unstale.training.datasets.dataset import Dataset
from unstale.training.datasets.images import Pixels, decoded
from unstale.training.datasets.source import Source, fetched, said

FILES = "celeba/*"
SIDE = 84
LEAST = 5  # images of a celebrity, as LEAF has it

_IDENTITIES, _ATTRIBUTES, _IMAGES = "identity_CelebA.txt", "list_attr_celeba.txt", "img_align_celeba"


def read(source: Source) -> Dataset:
    """84x84 RGB images, labels 1 for smiling and 0 for not, and who it is as the group; in torchvision's layout.

    As in LEAF, celebrities with fewer than 5 images are left out, and of each one's n images floor(0.9 n) are to train
    on and the others for the test, so that both parts know the same celebrities. LEAF draws which; here the test gets
    the last ones in the order of the list, which is none of faces. The partition of the release
    (list_eval_partition.txt) has other celebrities in the test and is not used.

    Decoded once: the pixels are kept beside the lists as unstale-84-<digest of the lists>.npy, about 4 GB for all of
    CelebA, mapped into memory by every process that reads it. Other lists make another file; delete it if you changed
    images but not the lists. Where the folder cannot be written to, each start decodes again.
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
    return Dataset(
        name=source.name,
        classes=2,
        stored_train_NX=images_NCHW[: len(train)],
        labels_train_N=labels_N[train],
        stored_test_MX=images_NCHW[len(train) :],
        labels_test_M=labels_N[test],
        groups_train_N=groups_N[train],
        groups_test_M=groups_N[test],
        origin=str(folder),
    )


def _lists(folder: Path) -> tuple[dict[str, int], dict[str, int]]:
    """From the name of an image to the number of the celebrity, and to 1 for smiling or 0.

    Raises ValueError or what reading raises when they are not what they should be.
    """
    identities = {}
    for line in (folder / _IDENTITIES).read_text(encoding="ascii").splitlines():
        if line.strip():
            name, number = line.split()
            identities[name] = int(number)
    _, header, *lines = (folder / _ATTRIBUTES).read_text(encoding="ascii").splitlines()
    column = header.split().index("Smiling") + 1
    smiles = {}
    for line in lines:
        if line.strip():
            fields = line.split()
            smiles[fields[0]] = int(int(fields[column]) > 0)
    lacking = next((name for name in identities if name not in smiles), None)
    if not identities or lacking:
        raise ValueError(f"{_ATTRIBUTES} has no {lacking or 'image'}")
    if not (folder / _IMAGES).is_dir():
        raise ValueError(f"there is no {_IMAGES}")
    return identities, smiles


def _split(identities: dict[str, int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows of the identity list to train on and for the test, each part in the order of the list."""
    held: dict[int, list[int]] = {}
    for row, number in enumerate(identities.values()):
        held.setdefault(number, []).append(row)
    train, test = [], []
    for rows in held.values():
        if len(rows) >= LEAST:
            kept = len(rows) * 9 // 10
            train += rows[:kept]
            test += rows[kept:]
    if not train:
        raise UserError(f"{_IDENTITIES} has no celebrity with {LEAST} images or more, as all of CelebA has")
    return np.sort(np.array(train, dtype=np.int64)), np.sort(np.array(test, dtype=np.int64))


def _pixels(folder: Path, files: list[Path]) -> Pixels:
    """The images [N, 3, 84, 84], from the file of an earlier start where there is one."""
    lists = hashlib.sha256()
    for name in (_IDENTITIES, _ATTRIBUTES):
        lists.update((folder / name).read_bytes())
    target = folder / f"unstale-{SIDE}-{lists.hexdigest()[:12]}.npy"
    if target.is_file():
        return _mapped(target, len(files))
    images = decoded(files, square=SIDE, colour=True)
    # A folder that cannot be written to, or a full disk, costs the next start its time, not this one.
    with suppress(OSError), TemporaryDirectory(prefix=".unstale-", dir=folder) as written:
        np.save(Path(written) / target.name, images)
        (Path(written) / target.name).replace(target)  # whole, also when two processes do this at a time
    return images


def _mapped(path: Path, examples: int) -> Pixels:
    try:
        images: Pixels = np.load(path, mmap_mode="c")  # "c": what torch takes without a warning
        if images.dtype != np.uint8 or images.shape != (examples, 3, SIDE, SIDE):
            raise ValueError(f"{images.dtype} {list(images.shape)}, expected {examples} images")
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{path}: cannot be read ({said(error)}); delete it to have it made again") from error
    return images
