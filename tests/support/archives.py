"""Tar archives of the tests, on every Python from 3.11.0 on."""

import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def open_archive(path: Path) -> Iterator[tarfile.TarFile]:
    """Open an archive that extracts data only; Python before 3.11.4 has no such filter, and extracts everything."""
    with tarfile.open(path) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extraction_filter = tarfile.data_filter
        yield archive
