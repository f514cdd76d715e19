"""A seed in a process of its own: the report, or the text of its failure."""

import logging
import traceback

import torch

from swarm.seed import FailureError, Report, run

LINES_SHOWN = 25


def attempt(seed: int) -> Report | str:
    """The report of a seed, or the text of its failure."""
    torch.set_num_threads(1)
    logging.disable()
    try:
        return run(seed)
    except FailureError as failure:
        return failed(failure)
    finally:
        logging.disable(logging.NOTSET)


def failed(failure: FailureError) -> str:
    """The failure, and the command that reproduces it."""
    last = "\n".join(failure.transcript[-LINES_SHOWN:])
    where = "".join(traceback.format_exception(failure.__cause__)[-3:])
    return f"{last}\n\n{where}\n{failure}\n\nmake swarm SEED={failure.seed}\n"
