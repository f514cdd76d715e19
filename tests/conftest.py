"""For every test: one thread computes, as in a run by default.

Models this small gain nothing from a second thread, and lose hundredfold where another process has the core; and
results are promised to the bit for one number of threads only.
"""

import torch

torch.set_num_threads(1)
