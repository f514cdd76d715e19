"""Versions of the model that are still needed."""

from collections.abc import Container


class VersionReferences:
    """Number of open tasks and unaggregated updates by their base version.

    A task takes a reference and passes it to its update. It is released when that round is applied, or the task
    ends without an update. The current version and the `window` versions before it, on which tasks may still be
    given, are needed without a reference too.

    Attributes:
        dropped: Versions that became unneeded since the last call of `unneeded`.
    """

    def __init__(self, window: int = 0) -> None:
        self.window = window
        self.current = 0
        self.counts: dict[int, int] = {0: 0}
        self.dropped: list[int] = []

    @property
    def needed(self) -> Container[int]:
        """Versions that are needed."""
        return self.counts

    def take(self, version: int) -> None:
        """Add a reference to the current version, or to one in the window before it."""
        assert self.current - self.window <= version <= self.current, f"no task is given on version {version}"
        self.counts[version] += 1

    def release(self, version: int) -> None:
        """Remove a reference."""
        count = self.counts[version] = self.counts[version] - 1
        if count == 0:
            self._drop_if_unneeded(version)

    def advance(self) -> None:
        """Make the next version the current one."""
        self.current += 1
        self.counts[self.current] = 0
        leaves_window = self.current - self.window - 1
        if leaves_window >= 0:
            self._drop_if_unneeded(leaves_window)

    def unneeded(self) -> list[int]:
        """Versions that became unneeded since the last call, ascending."""
        versions, self.dropped = sorted(self.dropped), []
        return versions

    def _drop_if_unneeded(self, version: int) -> None:
        # References are only taken in the window, so a version outside of it never gets new ones.
        if self.counts[version] == 0 and version < self.current - self.window:
            del self.counts[version]
            self.dropped.append(version)
