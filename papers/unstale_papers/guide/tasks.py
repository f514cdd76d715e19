"""Data sets and models of the policy guide's tasks that unstale does not have: regression and a language model.

Legend: n examples, b examples of a batch, F features, t bytes of a context, e numbers of an embedding.
"""

from math import sqrt
from pydoc_data.topics import topics

import numpy as np
import torch
from sklearn.datasets import make_friedman1
from torch import Tensor, nn
from typing_extensions import override

from unstale.training.datasets import Dataset, Split

EXAMPLES, TEST_EXAMPLES, FEATURES = 6000, 1500, 10
CONTEXT, STRIDE, GROUPS, TEST_EVERY = 12, 12, 200, 8
BYTES = 128  # of ASCII; other characters of the texts are replaced
EMBEDDED, HIDDEN = 12, 96


def friedman() -> Dataset:
    """Friedman's first regression problem: ten uniform features, of which five count, and noise of deviation 1.

        y = 10 sin(pi x1 x2) + 20 (x3 - 1/2)^2 + 10 x4 + 5 x5 + noise,   x in [0, 1]

    Inputs are the features with mean 0 and deviation 1. Targets are rounded to whole numbers from 0 on, so that they
    are divided among clients, and kept for validation, as classes are.
    Source: Friedman, Annals of Statistics 1991; scikit-learn's make_friedman1 with random_state 0
    """
    inputs_nF, targets_n = make_friedman1(EXAMPLES + TEST_EXAMPLES, FEATURES, noise=1.0, random_state=0)
    stored_nF = torch.from_numpy((inputs_nF - 0.5) * sqrt(12)).float()
    labels_n = torch.from_numpy(np.maximum(0, np.rint(targets_n)).astype(np.int64))
    return Dataset(
        name="friedman",
        classes=int(labels_n.max()) + 1,
        train=Split(stored_NX=stored_nF[:EXAMPLES], labels_N=labels_n[:EXAMPLES]),
        test=Split(stored_NX=stored_nF[EXAMPLES:], labels_N=labels_n[EXAMPLES:]),
    )


def regressor() -> nn.Module:
    """Two hidden layers of 32 units; its output is around the middle of Friedman's targets at first."""
    last = nn.Linear(32, 1)
    nn.init.constant_(last.bias, 14.0)
    return nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), last)


def help_texts() -> Dataset:
    """The next byte of the texts of Python's own `help`, from the twelve before it.

    The texts are cut into 200 passages, the groups of the data: a client of partition `natural` has one passage. Every
    eighth example of a passage is a test example. The texts differ a little between versions of Python.
    """
    text = "\n".join(topics[name] for name in sorted(topics)).encode("ascii", "replace")
    bytes_n = torch.from_numpy(np.frombuffer(text, dtype=np.uint8).copy())
    windows_nt = bytes_n.unfold(0, CONTEXT + 1, STRIDE)
    numbers_n = torch.arange(len(windows_nt))
    is_test_n = numbers_n % TEST_EVERY == TEST_EVERY - 1
    groups_n = numbers_n * GROUPS // len(windows_nt)

    def split(chosen_n: Tensor) -> Split:
        own_nt = windows_nt[chosen_n]
        contexts_nt, next_n = own_nt[:, :CONTEXT].contiguous(), own_nt[:, CONTEXT].long()
        return Split(stored_NX=contexts_nt, labels_N=next_n, groups_N=groups_n[chosen_n])

    return Dataset(name="help-texts", classes=BYTES, train=split(~is_test_n), test=split(is_test_n))


class NextByte(nn.Module):
    """A neural language model of bytes: embeddings of the context, one hidden layer, logits of the next byte.

    Source: Bengio et al., JMLR 2003, without the direct connections
    """

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(BYTES, EMBEDDED)
        self.hidden = nn.Linear(CONTEXT * EMBEDDED, HIDDEN)
        self.last = nn.Linear(HIDDEN, BYTES)

    @override
    def forward(self, contexts_bt: Tensor) -> Tensor:
        embedded_bte = self.embedding(contexts_bt.long())
        logits: Tensor = self.last(torch.tanh(self.hidden(embedded_bte.flatten(1))))
        return logits
