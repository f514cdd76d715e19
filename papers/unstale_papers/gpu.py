"""Processes that use one GPU together, and the memory of each."""

PROCESS_BYTES = 8 * 2**30
"""Memory of the GPU for each process: the examples of a data set, a batch of clients, and its graphs."""

PROCESSES_MAX = 4
"""Most processes by default. They take turns on the GPU; one uses it while others compute on the CPU."""

DIVIDED = 0.9
"""Share of the GPU's memory that is divided; the rest is for PyTorch's own memory in each process."""


def processes(gpu_bytes: int, cores: int) -> int:
    """Number of processes where the user names none."""
    return max(1, min(PROCESSES_MAX, cores, gpu_bytes // PROCESS_BYTES))


def share(processes: int) -> float:
    """Of the GPU's memory, for each of so many processes."""
    return 1.0 if processes == 1 else DIVIDED / processes
