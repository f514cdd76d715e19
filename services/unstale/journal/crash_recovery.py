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


def drop_lost_events(database: Database, segments: Segments, sync_every_s: float) -> None:
    """Go back to the last event before which everything is there, and let the run have another id: what clients were
    told since nobody knows, and with another run they let go of it.

    Does nothing after a server that ended in order, or that had everything synced. sync_every_s: of the server that was
    running. Raises DamagedError for what had reached the disk and is not there: that is no lost end.
    """
    if database.meta(DURABILITY) == "full" or database.meta(ENDED) == str(database.last_seq()):
        return
    last = database.last_seq() + database.missing
    synced = int(database.meta(SYNCED) or 0)
    for row in database.updates_after(synced):
        if row.place is not None and not _is_there(segments, row):
            database.cut_back(row.seq)
            break
    log.warning(
        "the machine stopped while the server was running: what was acknowledged in the %g s before may be lost, as "
        "durability normal allows; the run resumes after event %d, %d later ones are known to be lost, and clients get "
        "another run id",
        sync_every_s,
        database.last_seq(),
        last - database.last_seq(),
    )
    database.set_meta({RUN_ID: ""})


def _is_there(segments: Segments, row: UpdateRow) -> bool:
    assert row.place is not None
    try:
        segments.read(row.place, memoryview(bytearray(row.place.size_bytes)))
    except DamagedError:
        return False
    return True
