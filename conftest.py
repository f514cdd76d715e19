"""For every test: one thread computes, as in a run by default.

Small models gain nothing from a second thread, and lose hundredfold if another process uses the core; and results are
equal to the bit only for equal numbers of threads.
"""

import pytest
import torch

from unstale import log_rate_limit

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _all_log_lines() -> None:
    """Reset the log's rate limit, so that one test does not suppress lines of the next."""
    log_rate_limit.OF_PROCESS.forget()
