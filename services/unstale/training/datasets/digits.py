"""scikit-learn's digits, which need no file."""

import numpy as np
import torch

from unstale.training.datasets.dataset import Dataset, Split
from unstale.training.datasets.source import Source


def read(source: Source) -> Dataset:
    """1,797 handwritten digits of 8x8 pixels, 0 to 16: 1,442 to train on and 355 to test.

    Of each class every fifth image in the stored order is a test image, so both splits have the same class shares.
    """
    from sklearn.datasets import load_digits  # slow to import; no other data set needs it

    stored = load_digits()
    images_NCHW = torch.from_numpy(stored.images.astype(np.uint8))[:, None]
    labels_N = torch.from_numpy(stored.target.astype(np.int64))
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
