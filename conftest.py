"""For every test: one thread computes, as in a run by default.

Models this small gain nothing from a second thread, and lose hundredfold where another process has the core; and
results are promised to the bit for one number of threads only.
"""

import pytest
import torch

from unstale import log_rate_limit

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _all_log_lines() -> None:
    """Lines about clients of one test leave room for those of the next."""
    log_rate_limit.OF_PROCESS.forget()
