"""Parts of payloads in memory, for simulations without a disk."""


class PlayedPart:
    """Stores its bytes. full: no more can be stored. log: its size after each change."""

    def __init__(self) -> None:
        self.bytes = b""
        self.full = False
        self.deleted = False
        self.log = [0]

    @property
    def have(self) -> int:
        return len(self.bytes)

    def append(self, chunk: memoryview) -> None:
        assert not self.deleted
        if self.full:
            raise OSError("no room")
        self.bytes += bytes(chunk)
        self.log.append(self.have)

    def mapped(self) -> memoryview:
        assert not self.deleted
        return memoryview(self.bytes)

    def frames(self) -> list[memoryview]:
        return [self.mapped()] if self.bytes else []

    def clear(self) -> None:
        assert not self.deleted
        self.bytes = b""
        self.log.append(0)

    def delete(self) -> None:
        self.deleted = True
