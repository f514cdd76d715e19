"""Data sets by name, as tensors."""

from unstale.training.datasets.dataset import Dataset, Later, Normalisation, Split, part, with_validation
from unstale.training.datasets.registry import DATASETS, SUMMARIES, check, is_there, load, read
from unstale.training.datasets.source import CACHE, NORMALISE, Source, cache_folder
from unstale.training.datasets.variant import varied

__all__ = [
    "CACHE",
    "DATASETS",
    "NORMALISE",
    "SUMMARIES",
    "Dataset",
    "Later",
    "Normalisation",
    "Source",
    "Split",
    "cache_folder",
    "check",
    "is_there",
    "load",
    "part",
    "read",
    "varied",
    "with_validation",
]
