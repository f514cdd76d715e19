"""What a machine that stopped takes with it: what was acknowledged and had not reached the disk, as `normal` allows."""

import logging

from unstale.journal.database import SYNCED, Database
from unstale.journal.disk import DamagedError
from unstale.journal.rows import UpdateRow
from unstale.journal.segments import Segments

log = logging.getLogger("unstale.journal")

RUN_ID = "run_id"
DURABILITY = "durability"  # with which the database was last written to
ENDED = "ended"  # seq at which its last server ended in order; "" when it did not


def forget_what_was_lost(database: Database, segments: Segments) -> None:
    """Go back to the last event before which everything is there, and let the run have another id: what clients were
    told since nobody knows, and with another run they let go of it.

    Does nothing after a server that ended in order, or that had everything synced. Raises DamagedError for what had
    reached the disk and is not there: that is no lost end.
    """
    if database.meta(DURABILITY) == "full" or database.meta(ENDED) == str(database.last_seq()):
        return
    synced = int(database.meta(SYNCED) or 0)
    for row in database.updates_after(synced):
        if row.place is not None and not _is_there(segments, row):
            log.warning(
                "the machine stopped before all was on its disk: event %d and %d behind it are lost, as durability "
                "normal allows",
                row.seq,
                database.last_seq() - row.seq,
            )
            database.cut_back(row.seq)
            break
    database.set_meta({RUN_ID: ""})


def _is_there(segments: Segments, row: UpdateRow) -> bool:
    assert row.place is not None
    try:
        segments.read(row.place, memoryview(bytearray(row.place.size_bytes)))
    except DamagedError:
        return False
    return True
