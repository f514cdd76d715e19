"""Data of which only the clients know anything."""

from typing import NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from unstale.errors import UserError
from unstale.training.datasets.data import Data, Part
from unstale.training.datasets.dataset import Dataset
from unstale.training.examples import Examples


class PrivateData(Data):
    """No examples here. Computations that need some raise UserError."""

    name = "private"
    origin = "the clients"
    is_private = True

    @property
    @override
    def input_shape(self) -> tuple[int, ...]:
        return ()

    @property
    @override
    def outputs(self) -> int:
        return 0

    @property
    @override
    def labels_digest(self) -> None:
        return None

    @override
    def has(self, part: Part) -> bool:
        return False

    @override
    def labels(self, part: Part) -> NDArray[np.int64]:
        _refuse()

    @override
    def groups(self, part: Part) -> NDArray[np.int64] | None:
        _refuse()

    @override
    def examples(self, part: Part, indices_n: NDArray[np.int64] | None, device: torch.device) -> Examples:
        _refuse()

    @override
    def labelled(self) -> Dataset:
        _refuse()


def _refuse() -> NoReturn:
    raise UserError(
        "the data of an app is private to the clients, and this needs examples with classes, expected a data set of "
        "data.name; leave it out"
    )
