"""Which versions of the model somebody still needs."""


class VersionReferences:
    """How many open tasks and unaggregated updates were made from each version.

    A reference is taken with a task, goes over to its update, and is released when the round that holds the
    update is applied, or when the task ends without one. The current version is needed even when nothing
    refers to it.
    """

    def __init__(self) -> None:
        self.current = 0
        self.counts: dict[int, int] = {0: 0}
        self._unneeded: list[int] = []

    def take(self) -> None:
        """Refer to the current version."""
        self.counts[self.current] += 1

    def release(self, version: int) -> None:
        """Give back one reference."""
        self.counts[version] -= 1
        self._drop_if_unneeded(version)

    def advance(self) -> None:
        """Make the next version the current one."""
        before = self.current
        self.current += 1
        self.counts[self.current] = 0
        self._drop_if_unneeded(before)

    def unneeded(self) -> list[int]:
        """Versions that became unneeded since the last call, ascending."""
        versions, self._unneeded = sorted(self._unneeded), []
        return versions

    def _drop_if_unneeded(self, version: int) -> None:
        # A reference is only ever taken on the current version, so an older one without any stays without.
        if self.counts[version] == 0 and version != self.current:
            del self.counts[version]
            self._unneeded.append(version)
