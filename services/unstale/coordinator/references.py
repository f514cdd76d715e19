"""Which versions of the model somebody still needs."""

from collections.abc import Container


class VersionReferences:
    """How many open tasks and unaggregated updates were made from each version.

    A reference is taken with a task, goes over to its update, and is released when the round that holds the
    update is applied, or when the task ends without one. The current version and the `window` versions before
    it, on which tasks may still be given, are needed even when nothing refers to them.

    dropped: versions that became unneeded since `unneeded` was last asked.
    """

    def __init__(self, window: int = 0) -> None:
        self.window = window
        self.current = 0
        self.counts: dict[int, int] = {0: 0}
        self.dropped: list[int] = []

    @property
    def needed(self) -> Container[int]:
        """Versions that somebody refers to, or may."""
        return self.counts

    def take(self, version: int) -> None:
        """Refer to the current version, or to one in the window before it."""
        assert self.current - self.window <= version <= self.current, f"no task is given on version {version}"
        self.counts[version] += 1

    def release(self, version: int) -> None:
        """Give back one reference."""
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
        # References are only taken in the window, so a version that has left it without any stays without.
        if self.counts[version] == 0 and version < self.current - self.window:
            del self.counts[version]
            self.dropped.append(version)
