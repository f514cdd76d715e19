import torch

# Models this small gain nothing from a second thread, and lose hundredfold where another process has the core.
torch.set_num_threads(1)
