"""The journal of one run while a server writes it: what happens in a turn is gathered, and stored together."""

import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from unstale.compensators import Made
from unstale.config.settings import RunSettings
from unstale.coordinator import events
from unstale.journal import checkpoints, copy_detection, recorded_settings, records, resumption
from unstale.journal.crash_recovery import DURABILITY, ENDED, RUN_ID, drop_lost_events
from unstale.journal.database import BOOT, SYNCED, Database
from unstale.journal.disk import NoRoomError, boot, free_bytes
from unstale.journal.disk_space import DiskSpaceMonitor
from unstale.journal.rows import Batch, CheckpointRow, Place
from unstale.journal.rundir import RunDirectory
from unstale.journal.segments import Segments, Writer
from unstale.journal.spill import Spill

log = logging.getLogger("unstale.journal")

EARLY_BYTES = (
    256 * 1024**2
)  # of updates, behind which a checkpoint comes early: their room is used again then, and is
EARLY_CHECKPOINTS = (
    32  # written to faster than new room; but not unless it takes a small share of what is written
)
RESERVE_BYTES = 16 * 1024**2  # that a checkpoint leaves for records, where run.free_bytes_min is not less
CHECKPOINTS_KEPT = 2  # so that one that turns out to be damaged is not the end of the run


class Journal:
    """One thread calls everything but `write_checkpoint`.

    batch: what has happened since the last commit. seq: of the last event noted. on_commit: told how long each commit
    took, seconds.
    """

    def __init__(
        self,
        directory: RunDirectory,
        settings: RunSettings,
        *,
        clock: Callable[[], float],
        writer: Writer | None = None,
    ) -> None:
        """directory: open for writing. clock: seconds, never going back, that say when to sync again. writer: of rows.

        Raises UserError for what is damaged in it.
        """
        self.directory = directory
        self.settings = settings
        self.on_commit: Callable[[float], object] = lambda _: None
        self.database = Database(directory.database)
        with ExitStack() as stack:
            stack.callback(self.database.close)
            self._take_up(directory, settings)
            self.segments = Segments(directory.segments, writer=writer)
            self.segments.cut(self.database.segment_ends())
            stack.pop_all()
        self.seq = self.database.last_seq()
        self.batch = Batch()
        self._synced_next = self.seq  # seq that the sync that is under way covers
        self._clock = clock
        self._unsynced_s: float | None = None  # since when something is stored that no sync covers
        self._syncs = 0  # begun in the background; all but the last have ended
        self._later: deque[tuple[int, Callable[[], None]]] = (
            deque()
        )  # what is to be done, and behind which of them
        self._stored_bytes = 0  # of updates, since the last checkpoint began
        self._checkpoint_bytes = 0  # of the last one that was made here
        self._room_bytes = 0  # as last looked at, less what was let in since
        self._places: dict[int, Place] | None = None
        self.disk_space = DiskSpaceMonitor(directory.path)

    def _take_up(self, directory: RunDirectory, settings: RunSettings) -> None:
        """Find out in which state the last server left the directory, and begin another start. Raises DamagedError
        where it cannot be used as it is: then nothing in it has changed."""
        database, found = self.database, Segments(directory.segments)
        changed = copy_detection.check(directory, database, found)
        if database.machine_restarted:
            drop_lost_events(database, found, settings.sync_every_s)
        database.check()
        facts = {BOOT: boot(), DURABILITY: settings.durability, ENDED: ""}
        facts[recorded_settings.KEY] = directory.config.read_text(encoding="utf-8")
        if changed is not None:
            log.warning(
                "the run directory %s is not as its last server left it (%s): the run resumes under another id, and "
                "clients drop the tasks and updates that they hold",
                directory.path,
                changed,
            )
            for path in copy_detection.set_aside(directory, found.above(database.segment_ends())):
                log.warning("%s holds updates that run.db does not name", path)
            facts[RUN_ID] = ""
        if not facts.get(RUN_ID, database.meta(RUN_ID)):
            copy_detection.forget_uploads(directory)
        database.end_here()
        copy_detection.begin(directory, database, facts)

    def run_id(self, fresh: str) -> str:
        """The id of the run, which is this one if it has none yet."""
        known = self.database.meta(RUN_ID)
        if known:
            return known
        self.database.set_meta({RUN_ID: fresh})
        return fresh

    def last_version(self) -> int:
        """The last version that was stored, 0 without any."""
        return copy_detection.last_version(self.database)

    def give_up(self, why: str) -> str:
        """Store that training cannot go on. why: message about it. Returns the message with the way out."""
        self.commit(durable=True)
        return resumption.give_up(self.database, self.directory.path, why)

    # --- what happens ---

    def note(self, event: events.Event, silent: Sequence[int] = ()) -> None:
        """An event but the arrival of an update is about to be handled. silent: clients whose lease it ends."""
        self.batch.events.append(records.to_row(self.next_seq(), event, silent))

    def next_seq(self) -> int:
        """Of the event that comes now."""
        self.seq += 1
        return self.seq

    def append(self, row: memoryview, handle: int) -> Place:
        """Write the row of an update, which must stay as it is until the next `settle` or `commit`. Raises UserError
        when it cannot be."""
        self._stored_bytes += len(row)
        place = self.segments.append(row)
        self.placed(handle, place)
        return place

    def settle(self) -> None:
        """Return when all rows are written, so that their memory may be used again. Raises UserError."""
        self.segments.settle()

    def placed(self, handle: int, place: Place) -> None:
        """A row that waits lies there."""
        if self._places is not None:
            self._places[handle] = place

    def spill(self, row_numbers: int) -> Spill:
        """Staging for rows that are read from here when their round closes. row_numbers: D."""
        self._places = {}
        return Spill(row_numbers, places=self._places, path_of=self.segments.path)

    def has_room(self, size_bytes: int) -> bool:
        """Whether the disk has room for an update of this size, and for all that may have to be written besides. It is
        looked at once a turn, because that takes 15 us."""
        needed_bytes = size_bytes + self.settings.free_bytes_min
        if self._room_bytes < needed_bytes:
            self._room_bytes = free_bytes(self.directory.path)
        if self._room_bytes < needed_bytes:
            self.segments.delete_spares()
            self._room_bytes = free_bytes(self.directory.path)
        self.disk_space.on_update(needed_bytes, self._room_bytes)
        if self._room_bytes < needed_bytes:
            return False
        self._room_bytes -= size_bytes
        return True

    @property
    def sync_in_s(self) -> float | None:
        """When `commit` is to be called at the latest, in seconds from now; None where everything is being synced."""
        if self._unsynced_s is None:
            return None
        return max(0.0, self._unsynced_s + self.settings.sync_every_s / 2 - self._clock())

    def commit(self, *, durable: bool = False) -> None:
        """Make what happened durable, as the run wants it, or against a power failure too. Raises UserError when it
        cannot be: then none of it is."""
        batch = self.batch
        at_once = durable or self.settings.durability == "full"
        if not batch:
            if at_once and self._unsynced_s is not None:
                self._sync()
            self._sync_in_time()
            return
        began_s = self._clock()
        self._room_bytes = 0
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
            self._do_all()
        else:
            self._sync_in_time()
        self.on_commit(self._clock() - began_s)

    def _sync(self) -> None:
        """Return when all that was stored is on the disk. Raises UserError."""
        self.segments.sync()
        self.database.set_meta({SYNCED: str(self.seq)})
        self._synced_next = self.seq
        self._do_all()

    def _sync_in_time(self) -> None:
        """Begin a sync in the background where half the time is over in which what was stored has to be on the disk.
        Where the sync before takes so long, wait for it."""
        if self.sync_in_s != 0.0:
            return
        self.segments.wait_for_sync()
        self.segments.sync_soon(self.database.log)
        self._unsynced_s = None
        self._syncs += 1
        # The one before has ended, so what it covers is on the disk; the next commit says so.
        self.batch.synced, self._synced_next = self._synced_next, self.seq
        while self._later and self._later[0][0] < self._syncs:
            self._later.popleft()[1]()

    def _when_synced(self, do: Callable[[], None]) -> None:
        """Have it done when all that was stored until now is on the disk, without waiting for that."""
        self._later.append((self._syncs + 1, do))
        if self._unsynced_s is None:
            self._unsynced_s = self._clock()

    def _do_all(self) -> None:
        """Do what waits. All that was stored is on the disk, and so is what this stores."""
        while self._later:
            self._later.popleft()[1]()
            self.database.set_meta({ENDED: ""})
        self._unsynced_s = None

    # --- checkpoints ---

    def wants_checkpoint(self, version: int, *, ends: bool) -> bool:
        """Whether this version, which was just made, is to be written. ends: it is the run's last."""
        due = ends or version % self.settings.checkpoint_every == 0
        due = due or self.disk_space.may_save()
        early_bytes = max(EARLY_BYTES, EARLY_CHECKPOINTS * self._checkpoint_bytes)
        return due or self._stored_bytes >= min(early_bytes, self.settings.payload_bytes_max)

    def begin_checkpoint(self) -> int:
        """A checkpoint will be written of the state as it is now; the seq that it covers."""
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
        """Write one; the name of the file and its bytes. Any thread. admission: None for a server that keeps none."""
        written = checkpoints.write(
            self.directory.checkpoints,
            version,
            {"learner": learner, "coordinator": coordinator, "admission": admission},
            {"seq": seq},
            reserve_bytes=min(self.settings.free_bytes_min, RESERVE_BYTES),
        )
        return written.path.name, written.size_bytes

    def keep_made(self, version: int, made: Made) -> None:
        """Write down what a version was compensated with, before it is noted. Any thread."""
        checkpoints.write(self.directory.compensations, version, {"made": made}, {})

    def saved(self, version: int, seq: int, file: str, size_bytes: int, at_s: float) -> None:
        """A checkpoint is whole on disk: from the next commit on, what only older ones need may go."""
        self._checkpoint_bytes = size_bytes
        self.disk_space.on_checkpoint_saved(version)
        self.batch.checkpoints.append(
            CheckpointRow(version=version, seq=seq, file=file, size_bytes=size_bytes, at_s=at_s)
        )

    def not_saved(self, version: int, error: NoRoomError) -> None:
        """A checkpoint was left out: the next one is due as soon as there is room."""
        reserve_bytes = min(self.settings.free_bytes_min, RESERVE_BYTES)
        self.disk_space.on_checkpoint_left_out(version, error, error.needed_bytes + reserve_bytes)

    def _forget(self) -> None:
        """Name no more what only older checkpoints need. The newest is on the disk."""
        kept = self.database.checkpoints()[:CHECKPOINTS_KEPT]
        oldest = kept[-1]
        self.database.forget_checkpoints(oldest.version)
        unneeded: Collection[int] = ()
        covered = 0  # the newest version that is never made again
        if len(kept) == CHECKPOINTS_KEPT and not self.settings.keep_updates:
            needed = self.database.segments_after(oldest.version)
            self.database.forget_events(oldest.seq)
            self.database.forget_segments(needed)
            unneeded = self.segments.others(needed)
            covered = oldest.version
        self._when_synced(partial(self._delete, oldest.version, unneeded, covered))

    def _delete(self, before_version: int, segments: Collection[int], covered: int) -> None:
        """Delete older checkpoints, and segments, and what versions up to one were compensated with. The database names
        the first two no more, on the disk."""
        for path in self._checkpoint_files():
            if checkpoints.version_of(path) < before_version:
                path.unlink()
        if covered:
            for path in self.directory.compensations.glob(f"*{checkpoints.SUFFIX}"):
                if checkpoints.version_of(path) <= covered:
                    path.unlink()
        self.segments.retire(segments)

    def _checkpoint_files(self) -> list[Path]:
        return list(self.directory.checkpoints.glob(f"*{checkpoints.SUFFIX}"))

    def close(self) -> None:
        """Nothing more will happen."""
        with ExitStack() as stack:
            stack.callback(self.directory.close)
            stack.callback(self.database.close)
            stack.callback(self.segments.close)
            self.segments.sync()
            self._do_all()
            self.database.set_meta({ENDED: str(self.database.last_seq())})
            self.database.store_totals()
