"""Tar archives of the tests, on every Python from 3.11.0 on."""

import tarfile
from pathlib import Path


def open_archive(path: Path) -> tarfile.TarFile:
    """Open an archive that extracts data only; Python before 3.11.4 has no such filter, and extracts everything."""
    archive = tarfile.open(path)
    if hasattr(tarfile, "data_filter"):
        archive.extraction_filter = tarfile.data_filter
    return archive
