"""A model, named as `remote.gated_model:network`, whose computing a test can stop and let go on, in any process."""

import os
import time
from pathlib import Path

from torch import Tensor, nn

from support.compensation import smooth

FOLDER = "UNSTALE_TEST_GATE"
"""The variable that names the folder of the gate. A process that waits leaves a file there with its number."""


class Gate(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        folder = Path(os.environ[FOLDER])
        while (folder / "closed").exists():
            (folder / str(os.getpid())).touch()
            time.sleep(0.02)
        return inputs


def network(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(Gate(), *smooth(input_shape, classes))
