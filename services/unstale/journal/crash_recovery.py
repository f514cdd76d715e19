"""Rolls back events lost in a power failure, which durability `normal` allows."""

import logging

from unstale.journal.database import SYNCED, Database
from unstale.journal.disk import DamagedError
from unstale.journal.rows import UpdateRow
from unstale.journal.segments import Segments

log = logging.getLogger("unstale.journal")

RUN_ID = "run_id"
DURABILITY = "durability"  # of the last server
ENDED = "ended"  # last seq of a server that shut down; "" after a crash


def drop_lost_events(database: Database, segments: Segments, sync_every_s: float) -> None:
    """Delete events from the first with a lost row, and give the run another id, so that clients drop their tasks.

    Does nothing if the server shut down or had synced everything. sync_every_s: of that server. Raises DamagedError
    where synced data is missing.
    """
    if database.meta(DURABILITY) == "full" or database.meta(ENDED) == str(database.last_seq()):
        return
    last = database.last_seq() + database.missing
    synced = int(database.meta(SYNCED) or 0)
    for row in database.updates_after(synced):
        if row.location is not None and not _is_intact(segments, row):
            database.cut_back(row.seq)
            break
    log.warning(
        "the machine stopped while the server was running: events acknowledged in the %g s before may be lost, as "
        "durability normal allows; the run resumes after event %d, %d later ones are known to be lost, and clients get "
        "another run id",
        sync_every_s,
        database.last_seq(),
        last - database.last_seq(),
    )
    database.set_meta({RUN_ID: ""})


def _is_intact(segments: Segments, row: UpdateRow) -> bool:
    assert row.location is not None
    try:
        segments.read(row.location, memoryview(bytearray(row.location.size_bytes)))
    except DamagedError:
        return False
    return True
