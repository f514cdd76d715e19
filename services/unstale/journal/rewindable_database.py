"""The database of a run that may be taken back to an earlier version."""

from collections.abc import Collection, Mapping
from pathlib import Path

from unstale.journal import row_codec
from unstale.journal.database import Database
from unstale.journal.rows import CheckpointRow, UpdateRow


class RewindableDatabase(Database):
    """A database from whose end events can be taken."""

    def rewind(
        self, checkpoint: CheckpointRow, waiting: Collection[UpdateRow], facts: Mapping[str, str]
    ) -> None:
        """Forget all that happened after a checkpoint.

        Args:
            checkpoint: In which no update waits and no task is open.
            waiting: Updates of `waiting_at` the checkpoint, as they are to be kept.
            facts: For `set_meta`, stored in the same transaction.
        """
        version, seq, at_s = checkpoint.version, checkpoint.seq, checkpoint.at_s
        with self._connection.transaction(sync=True):
            run = self._connection.execute
            run("DELETE FROM own_evaluations WHERE seq > ?", (seq,))
            for row in waiting:
                run("DELETE FROM own_evaluations WHERE seq = ?", (row.seq,))
            run("DELETE FROM updates WHERE seq > ?", (seq,))
            run("DELETE FROM events WHERE seq > ?", (seq,))
            run("DELETE FROM tasks WHERE at_s >= ?", (at_s,))
            run("DELETE FROM checkpoints WHERE version >= ?", (version,))
            self._connection.insert(row_codec.UPDATES, map(row_codec.of_update, waiting), replace=True)
            run("DELETE FROM evaluations WHERE version > ?", (version,))
            run("DELETE FROM rounds WHERE version > ?", (version,))
            self._connection.insert(row_codec.CHECKPOINTS, [row_codec.of_checkpoint(checkpoint)])
            self._connection.insert(row_codec.META, facts.items(), replace=True)
        self._waiting.clear()
        self.end_here()

    def copy_to(self, path: Path) -> None:
        """Write a copy of the whole database. path: of no file; its folder exists."""
        self._connection.copy_to(path)

    def is_complete(self) -> bool:
        """Whether every event and every accepted update since the run began is still there."""
        gone = self._connection.number(
            "SELECT count(*) FROM updates WHERE handle IS NOT NULL AND segment IS NULL"
        )
        kept = self._connection.number(
            "SELECT (SELECT count(*) FROM events) + (SELECT count(*) FROM updates)"
        )
        return gone == 0 and kept == self.last_seq()

    def seq_of(self, version: int) -> int | None:
        """Of the event that made a version, None where that is not kept."""
        ((seq,),) = self._connection.rows(
            "SELECT max(seq) FROM events WHERE kind = 'RoundApplied' AND json_extract(fields, '$.version') = ?",
            version,
        )
        return None if seq is None else int(seq)
