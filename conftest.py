"""For every test: one thread computes, as in a run by default, and the arithmetic of CUDA is restored after it.

Small models gain nothing from a second thread, and lose hundredfold if another process uses the core; and results are
equal to the bit only for equal numbers of threads.
"""

from collections.abc import Iterator

import pytest
import torch

from unstale import log_rate_limit
from unstale.learner.device import arithmetic_restored

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _all_log_lines() -> None:
    """Reset the log's rate limit, so that one test does not suppress lines of the next."""
    log_rate_limit.OF_PROCESS.forget()


@pytest.fixture(autouse=torch.cuda.is_available())
def _arithmetic_of_cuda() -> Iterator[None]:
    with arithmetic_restored():
        yield
