"""The journal of a run, as a server writes it: records of a turn are stored in one transaction."""

import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from unstale.compensators import Made
from unstale.config.settings import RunSettings
from unstale.coordinator import events
from unstale.journal import checkpoints, records, resumption
from unstale.journal.database import BOOT, SYNCED, Database
from unstale.journal.disk import DiskSpaceMonitor, boot, free_bytes
from unstale.journal.resumption import DURABILITY, ENDED, RUN_ID
from unstale.journal.rounds import Spill
from unstale.journal.rows import Batch, CheckpointRow, Location
from unstale.journal.rundir import SETTINGS, RunDirectory
from unstale.journal.segments import Segments, Writer
from unstale_client.disk import NoRoomError

log = logging.getLogger("unstale.journal")

# A checkpoint is early after so many bytes of updates, because writing to segments that it covers is faster than to new
# ones; but not before a multiple of its own size is written.
EARLY_BYTES = 256 * 1024**2
EARLY_CHECKPOINTS = 32
RESERVE_BYTES = 16 * 1024**2  # that a checkpoint leaves free for records, or run.free_bytes_min if that is less
CHECKPOINTS_KEPT = 2  # so that a damaged one does not end the run


class Journal:
    """One thread calls all methods except those for any thread."""

    def __init__(
        self,
        directory: RunDirectory,
        settings: RunSettings,
        *,
        clock: Callable[[], float],
        writer: Writer | None = None,
    ) -> None:
        """clock: monotonic seconds, for syncs. writer: of rows. Raises UserError for a damaged directory."""
        self.directory = directory
        self.settings = settings
        self.on_commit: Callable[[float], object] = lambda _: None  # receives the duration of each commit, in seconds
        self.database = Database(directory.database)
        with ExitStack() as stack:
            stack.callback(self.database.close)
            self._begin(directory, settings)
            self.segments = Segments(directory.segments, writer=writer)
            self.segments.cut(self.database.segment_ends())
            stack.pop_all()
        self.seq = self.database.last_seq()  # number of the last recorded event
        self.batch = Batch()  # records since the last commit
        self._synced_next = self.seq  # seq that the current sync covers
        self._clock = clock
        self._unsynced_s: float | None = None  # since when stored records are not synced
        self._syncs = 0  # started in the background; all but the last have ended
        self._deferred: deque[tuple[int, Callable[[], None]]] = deque()  # calls after a number of syncs
        self._stored_bytes = 0  # of updates, since the last checkpoint began
        self._checkpoint_bytes = 0  # of the last checkpoint
        self._free_bytes = 0  # at the last measurement, less accepted updates
        self._locations: dict[int, Location] | None = None
        self._reserve_bytes = min(settings.free_bytes_min, RESERVE_BYTES)
        self.disk_space = DiskSpaceMonitor(directory.path)

    def _begin(self, directory: RunDirectory, settings: RunSettings) -> None:
        """Check the directory and store the start. Raises DamagedError, with nothing changed."""
        database, segments = self.database, Segments(directory.segments)
        changed = resumption.check_is_no_copy(directory, database, segments)
        if database.machine_restarted:
            resumption.drop_lost_events(database, segments, settings.sync_every_s)
        database.check()
        facts = {BOOT: boot(), DURABILITY: settings.durability, ENDED: ""}
        facts[SETTINGS] = directory.config.read_text(encoding="utf-8")
        if changed is not None:
            log.warning(
                "the run directory %s is not as its last server left it (%s): the run resumes under another id, and "
                "clients drop their tasks and updates",
                directory.path,
                changed,
            )
            for path in resumption.set_aside(directory, segments.above(database.segment_ends())):
                log.warning("%s has updates that are not in run.db", path)
            facts[RUN_ID] = ""
        if not facts.get(RUN_ID, database.meta(RUN_ID)):
            resumption.forget_uploads(directory)
        database.end_here()
        resumption.begin(directory, database, facts)

    def run_id(self, fresh: str) -> str:
        """The id of the run; `fresh` if it has none."""
        known = self.database.meta(RUN_ID)
        if known:
            return known
        self.database.set_meta({RUN_ID: fresh})
        return fresh

    def last_version(self) -> int:
        """The last stored version, 0 without one."""
        return resumption.last_version(self.database)

    def give_up(self, why: str) -> str:
        """Store the reason why the run is given up; returns the error message for it."""
        self.commit(durable=True)
        return resumption.give_up(self.database, self.directory.path, why)

    # --- records ---

    def note(self, event: events.Event, silent: Sequence[int] = ()) -> None:
        """Record an event, except UpdateArrived, before it is handled. silent: clients whose leases it ends."""
        self.batch.events.append(records.to_row(self.next_seq(), event, silent))

    def next_seq(self) -> int:
        """Number of a new event."""
        self.seq += 1
        return self.seq

    def append(self, row: memoryview, handle: int) -> Location:
        """Write the row of an update, which must not change before the next `settle` or `commit`. Raises UserError."""
        self._stored_bytes += len(row)
        location = self.segments.append(row)
        self.note_location(handle, location)
        return location

    def settle(self) -> None:
        """Return when all rows are written, and their memory may be reused. Raises UserError."""
        self.segments.settle()

    def note_location(self, handle: int, location: Location) -> None:
        """Note the place of a pending row, for `spill`."""
        if self._locations is not None:
            self._locations[handle] = location

    def spill(self, row_numbers: int) -> Spill:
        """Staging for rows that are read from the segments when their round closes. row_numbers: D."""
        self._locations = {}
        return Spill(row_numbers, locations=self._locations, segments=self.segments)

    def has_room(self, size_bytes: int) -> bool:
        """Whether the disk has room for an update, beside run.free_bytes_min. Measured once a turn: it takes 15 us."""
        needed_bytes = size_bytes + self.settings.free_bytes_min
        if self._free_bytes < needed_bytes:
            self._free_bytes = free_bytes(self.directory.path)
        if self._free_bytes < needed_bytes:
            self.segments.delete_spares()
            self._free_bytes = free_bytes(self.directory.path)
        self.disk_space.on_update(needed_bytes, self._free_bytes)
        if self._free_bytes < needed_bytes:
            return False
        self._free_bytes -= size_bytes
        return True

    @property
    def sync_in_s(self) -> float | None:
        """Seconds until the latest time of the next `commit`; None where all is being synced."""
        if self._unsynced_s is None:
            return None
        return max(0.0, self._unsynced_s + self.settings.sync_every_s / 2 - self._clock())

    def commit(self, *, durable: bool = False) -> None:
        """Store the batch. durable: make it survive a power failure, even with durability `normal`.

        Raises UserError, with nothing stored.
        """
        batch = self.batch
        at_once = durable or self.settings.durability == "full"
        if not batch:
            if at_once and self._unsynced_s is not None:
                self._sync()
            self._sync_in_time()
            return
        began_s = self._clock()
        self._free_bytes = 0
        self.segments.settle()
        if at_once:
            self.segments.sync()
            batch.synced = self._synced_next = self.seq
        self.database.store(batch, sync=at_once)
        self.batch = Batch()
        if self._unsynced_s is None:
            self._unsynced_s = began_s
        if batch.checkpoints:
            self._when_synced(self._forget)
        if at_once:
            self._run_deferred()
        else:
            self._sync_in_time()
        self.on_commit(self._clock() - began_s)

    def _sync(self) -> None:
        """Return when all stored records are durable. Raises UserError."""
        self.segments.sync()
        self.database.set_meta({SYNCED: str(self.seq)})
        self._synced_next = self.seq
        self._run_deferred()

    def _sync_in_time(self) -> None:
        """Start a sync in the background after half of run.sync_every_s; wait for the one before."""
        if self.sync_in_s != 0.0:
            return
        self.segments.wait_for_sync()
        self.segments.sync_soon(self.database.log)
        self._unsynced_s = None
        self._syncs += 1
        # The sync before has ended; the next commit stores which events it covers.
        self.batch.synced, self._synced_next = self._synced_next, self.seq
        while self._deferred and self._deferred[0][0] < self._syncs:
            self._deferred.popleft()[1]()

    def _when_synced(self, call: Callable[[], None]) -> None:
        """Call a function when all records stored until now are durable."""
        self._deferred.append((self._syncs + 1, call))
        if self._unsynced_s is None:
            self._unsynced_s = self._clock()

    def _run_deferred(self) -> None:
        """Run all deferred calls. All stored records are durable, and so is what the calls store."""
        while self._deferred:
            self._deferred.popleft()[1]()
            self.database.set_meta({ENDED: ""})
        self._unsynced_s = None

    # --- checkpoints ---

    def wants_checkpoint(self, version: int, *, ends: bool) -> bool:
        """Whether to save this new version. ends: it is the last of the run."""
        early_bytes = max(EARLY_BYTES, EARLY_CHECKPOINTS * self._checkpoint_bytes)
        return (
            ends
            or version % self.settings.checkpoint_every == 0
            or self.disk_space.may_save()
            or self._stored_bytes >= min(early_bytes, self.settings.payload_bytes_max)
        )

    def begin_checkpoint(self) -> int:
        """Start a checkpoint of the current state; returns the seq that it covers."""
        self._stored_bytes = 0
        return self.seq

    def write_checkpoint(
        self,
        version: int,
        seq: int,
        learner: Mapping[str, Any],
        coordinator: Mapping[str, Any],
        admission: Mapping[str, Any] | None = None,
    ) -> tuple[str, int]:
        """Write a checkpoint; returns the name and size of the file. Any thread."""
        written = checkpoints.write(
            self.directory.checkpoints,
            version,
            {"learner": learner, "coordinator": coordinator, "admission": admission},
            {"seq": seq},
            reserve_bytes=self._reserve_bytes,
        )
        return written.path.name, written.size_bytes

    def keep_made(self, version: int, made: Made) -> None:
        """Write the estimates that a version is compensated with, before it is recorded. Any thread."""
        checkpoints.write(self.directory.compensations, version, {"made": made}, {})

    def saved(self, version: int, seq: int, file: str, size_bytes: int, at_s: float) -> None:
        """Record a complete checkpoint. Data that only older ones need is deleted after a commit and a sync."""
        self._checkpoint_bytes = size_bytes
        self.disk_space.on_checkpoint_saved(version)
        self.batch.checkpoints.append(CheckpointRow(version, seq, file, size_bytes, at_s))

    def not_saved(self, version: int, error: NoRoomError) -> None:
        """A checkpoint was not written: the next one is due when there is room."""
        self.disk_space.on_checkpoint_left_out(version, error, error.needed_bytes + self._reserve_bytes)

    def _forget(self) -> None:
        """Forget records that only older checkpoints need. The newest is durable."""
        kept = self.database.checkpoints()[:CHECKPOINTS_KEPT]
        oldest = kept[-1]
        self.database.forget_checkpoints(oldest.version)
        unneeded: Collection[int] = ()
        covered = 0  # the newest version that is never computed again
        if len(kept) == CHECKPOINTS_KEPT and not self.settings.keep_updates:
            needed = self.database.segments_after(oldest.version)
            self.database.forget_events(oldest.seq)
            self.database.forget_segments(needed)
            unneeded = self.segments.others(needed)
            covered = oldest.version
        self._when_synced(partial(self._delete, oldest.version, unneeded, covered))

    def _delete(self, before_version: int, segments: Collection[int], covered: int) -> None:
        """Delete older checkpoints, estimates up to a version, and segments, which the database has forgotten."""
        checkpoints.delete(self.directory.checkpoints, before_version)
        checkpoints.delete(self.directory.compensations, covered + 1)
        self.segments.retire(segments)

    def close(self) -> None:
        """Store the end, and close all files."""
        with ExitStack() as stack:
            stack.callback(self.directory.close)
            stack.callback(self.database.close)
            stack.callback(self.segments.close)
            self.segments.sync()
            self._run_deferred()
            self.database.set_meta({ENDED: str(self.database.last_seq())})
            self.database.store_totals()
