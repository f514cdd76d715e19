"""Backend `processes`: clients computed in this process and in others beside it, one on each core."""

import os
import subprocess
import sys
import weakref
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import Pipe
from typing import Any

from typing_extensions import override

from unstale.config.settings import Settings
from unstale.config.training_context import TrainingContext
from unstale.errors import UserError
from unstale.simulator.backends import beside
from unstale.simulator.backends.backend import Backend, Computed, Job
from unstale.simulator.backends.loop import one_by_one
from unstale.simulator.backends.slots import SLOTS, Slots, make_file
from unstale.training.local import LocalTraining


class Processes(Backend):
    """The bits are those of `loop`, whoever computes: every process does the same with the same numbers.

    The others need seconds to come up. Until then everything is computed here, but where clients keep something: then
    client i is always computed by process i mod P, and so from the first job on all must be there. Otherwise client i
    goes there if that gives nobody more than his share of the steps; this bounds how many processes hold its examples.

    Each process holds the data set. They end with this one, however it ends, and `close` ends them.
    """

    def __init__(
        self, context: TrainingContext, training: LocalTraining, settings: Settings, processes: int
    ) -> None:
        """context, training: of the run's settings, on the CPU. processes: P, this one among them, >= 1."""
        self.at_a_time = processes
        self._trainer = context.trainer
        self._keeps_state = training.keeps_state
        shape = context.model.dimension, context.model.buffers_b.numel(), training.needs_extra
        self._beside = [_Beside(settings, *shape) for _ in range(processes - 1)]

    @override
    def compute(self, jobs: Sequence[Job]) -> list[Computed]:
        made: list[Computed] = []
        for start in range(0, len(jobs), SLOTS):
            made += self._compute(jobs[start : start + SLOTS])
        return made

    def _compute(self, jobs: Sequence[Job]) -> list[Computed]:
        if self._keeps_state:
            self.wait()
        ready = [process for process in self._beside if process.is_ready]
        here, *elsewhere = self._shared_out(jobs, 1 + len(ready))
        at_work = [(process, places) for process, places in zip(ready, elsewhere, strict=True) if places]
        for process, places in at_work:
            process.begin([jobs[place] for place in places])
        made = dict(zip(here, one_by_one(self._trainer, [jobs[place] for place in here]), strict=True))
        for process, places in at_work:
            made.update(zip(places, process.end(), strict=True))
        return [made[place] for place in range(len(jobs))]

    @override
    def keep(self, client_id: int, number: int) -> None:
        self._settle(client_id, number, kept=True)

    @override
    def drop(self, client_id: int, number: int) -> None:
        self._settle(client_id, number, kept=False)

    def wait(self) -> None:
        """Until all processes are ready."""
        for process in self._beside:
            process.wait()

    @override
    def close(self) -> None:
        for process in self._beside:
            process.close()

    def _settle(self, client_id: int, number: int, *, kept: bool) -> None:
        if not self._keeps_state:
            return
        home = client_id % self.at_a_time
        if home:
            self._beside[home - 1].verdicts.append((client_id, number, kept))
        else:
            (self._trainer.keep if kept else self._trainer.drop)(client_id, number)

    def _shared_out(self, jobs: Sequence[Job], count: int) -> list[list[int]]:
        """The places of the jobs that each of so many processes computes, this one first."""
        steps = [self._trainer.steps_of(job.client_id) for job in jobs]
        fair = -(-sum(steps) // count)
        places: list[list[int]] = [[] for _ in range(count)]
        load = [0] * count
        for place, job in enumerate(jobs):
            process = job.client_id % count
            if not self._keeps_state and load[process] + steps[place] > fair:
                process = load.index(min(load))
            places[process].append(place)
            load[process] += steps[place]
        return places


class _Beside:
    """One of the other processes, from this side. verdicts: what it is told with the next jobs."""

    def __init__(self, settings: Settings, dimension: int, buffers: int, extra: bool) -> None:
        self.verdicts: list[tuple[int, int, bool]] = []
        self._ready = False
        slots_descriptor = make_file(dimension, buffers, extra=extra)
        self._slots = Slots(slots_descriptor, dimension, buffers, extra=extra)
        self._pipe, theirs = Pipe()
        paths = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(  # noqa: S603  (our own program)
            [sys.executable, "-m", beside.__name__, str(theirs.fileno()), str(slots_descriptor)],
            pass_fds=(theirs.fileno(), slots_descriptor),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": paths},
            process_group=0,  # an interrupt from the keyboard is for us, and we end it
        )
        self.close = weakref.finalize(self, _end, self._process, self._pipe)
        theirs.close()
        os.close(slots_descriptor)
        beside.say(self._pipe, settings.model_dump(mode="json", exclude_unset=True))

    @property
    def is_ready(self) -> bool:
        if not self._ready and self._pipe.poll():
            self.wait()
        return self._ready

    def wait(self) -> None:
        if not self._ready:
            self._ready = self._heard() == "ready"

    def begin(self, jobs: Sequence[Job]) -> None:
        """Have it compute these while we do something else. At most SLOTS."""
        words = beside.order(jobs, self.verdicts, self._slots)
        self.verdicts = []
        with suppress(BrokenPipeError, ConnectionResetError):  # `end` says why
            beside.say(self._pipe, words)

    def end(self) -> list[Computed]:
        """What it made of the jobs last given."""
        return beside.understood(self._heard(), self._slots)

    def _heard(self) -> Any:
        try:
            return beside.hear(self._pipe)
        except (EOFError, ConnectionResetError):
            code = self._process.wait()
        if code < 0:
            raise UserError(
                f"a process that computes clients was ended by signal {-code}, perhaps for want of memory; "
                "set simulation.processes to fewer, or simulation.backend to loop"
            )
        raise RuntimeError(
            f"a process that computes clients ended with exit code {code}; see what it printed"
        )


def _end(process: subprocess.Popen[bytes], pipe: beside.Pipe) -> None:
    pipe.close()
    process.terminate()  # there is nothing that it would have to finish
    process.wait()
