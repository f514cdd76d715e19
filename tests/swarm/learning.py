"""A simulated learner and computing thread: a model encodes its version and all its inputs.

Legend: K updates of a round, in order of arrival; D numbers of a row.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from swarm.world import World
from unstale.learner.learner import RoundResult
from unstale.learner.updates import RoundUpdate, Rows
from unstale.learner.versions import Version
from unstale.server.commands import (
    Applied,
    ApplyCommand,
    CheckpointCommand,
    Command,
    ComputeResult,
    EvaluateCommand,
    Evaluated,
    ForgetCommand,
    Saved,
)
from unstale.server.compute import Save, frames_of
from unstale.training.evaluate import Evaluation

NUMBERS = 3  # of a model: its version, and two halves of the chain; of a payload: see `client.vector`
LEARNING_RATE = 0.1


def chained(chain: int, rows: Tensor | Rows, updates: Sequence[RoundUpdate]) -> int:
    """The next link of the chain: a digest of every bit of the rows, of their metadata, and of their order.

    rows: [K, D].
    """
    matrix_KD = rows if isinstance(rows, Tensor) else rows.columns(0, rows.shape[1])
    return crc32(repr(updates).encode(), crc32(matrix_KD.contiguous().numpy().tobytes(), chain))


def version_of(number: int, chain: int) -> Version:
    """The payload of a version."""
    model_d = torch.tensor([number, chain & 0xFFFF, chain >> 16], dtype=torch.float32)
    return Version(model_d=model_d, buffers_b=torch.empty(0))


def model(number: int, chain: int) -> bytes:
    """The same, as a payload."""
    return np.array([number, chain & 0xFFFF, chain >> 16], dtype="<f4").tobytes()


def evaluation(_: Version) -> Evaluation:
    """The evaluation of every version."""
    return Evaluation(accuracy=0.5, loss=1.0, class_accuracy=(0.5,), examples=2)


class PlayedLearner:
    """Replaces `Learner`. chains: of the stored versions."""

    row_numbers = NUMBERS
    learning_rate = LEARNING_RATE

    def __init__(self) -> None:
        self.version = 0
        self.chains = {0: 0}

    @property
    def sent(self) -> Version:
        return self.base(self.version)

    def base(self, version: int) -> Version:
        return version_of(version, self.chains[version])

    def apply_round(self, rows: Tensor | Rows, updates: Sequence[RoundUpdate], made: None = None) -> RoundResult:
        assert made is None, "there is no compensator"
        assert tuple(rows.shape) == (len(updates), NUMBERS)
        for update in updates:
            assert update.staleness == self.version - update.base_version
            assert update.base_version in self.chains, f"version {update.base_version} is forgotten"
        chain = chained(self.chains[self.version], rows, updates)
        self.version += 1
        self.chains[self.version] = chain
        return RoundResult(
            version=self.version,
            sent=self.sent,
            learning_rate=LEARNING_RATE,
            weights_K=tuple(1 / len(updates) for _ in updates),
            staleness=tuple(update.staleness for update in updates),
            rate_factor=1.0,
            overflowed=False,
        )

    def forget(self, version: int) -> None:
        del self.chains[version]

    def keep_only(self, versions: Container[int]) -> None:
        self.chains = {number: chain for number, chain in self.chains.items() if number in versions}

    def state_dict(self) -> dict[str, Any]:
        return {"version": self.version, "chains": dict(self.chains)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.version, self.chains = state["version"], dict(state["chains"])


class PlayedCompute:
    """Replaces `server.compute.Compute`; its work takes virtual time, and then is done at once.

    work_s: upper bound for a round, an evaluation or a checkpoint. check: called with each round before it
    is aggregated. post: receives the results. save: writes a checkpoint, None without one. guarded: runs calls that may
    kill the server.
    """

    def __init__(
        self,
        world: World,
        learner: PlayedLearner,
        *,
        work_s: float,
        check: Callable[[ApplyCommand], None],
        post: Callable[[ComputeResult], None],
        save: Save | None,
        guarded: Callable[[Callable[[], None]], None],
    ) -> None:
        self._world = world
        self._rng = world.draws("compute")
        self._learner = learner
        self._work_s = work_s
        self._check = check
        self._post = post
        self._save = save
        self._guarded = guarded
        self._free_s = 0.0

    def submit(self, command: Command) -> None:
        if isinstance(command, ApplyCommand):
            self._check(command)
        work_s = 0.0 if isinstance(command, ForgetCommand) else self._work_s * float(self._rng.random())
        self._free_s = max(self._free_s, self._world.now_s) + work_s
        self._world.at(self._free_s, lambda: self._guarded(lambda: self._perform(command)))

    def _perform(self, command: Command) -> None:
        match command:
            case ForgetCommand(version=version):
                self._learner.forget(version)
            case ApplyCommand():
                self._post(self._applied(command))
            case EvaluateCommand(version=version):
                assert version == self._learner.version, "an older version than the newest is measured"
                measured = evaluation(self._learner.sent)
                self._post(Evaluated(version=version, evaluation=measured, evaluate_s=0.0))
            case CheckpointCommand(version=version, seq=seq):
                assert self._save is not None
                assert version == self._learner.version, "an older version than the newest is saved"
                self._world.seen["checkpoints"] += 1
                file, size_bytes = self._save(command, self._learner.state_dict())
                self._post(Saved(version=version, seq=seq, file=file, size_bytes=size_bytes, checkpoint_s=0.0))

    def _applied(self, command: ApplyCommand) -> Applied:
        result = self._learner.apply_round(command.round.rows, command.updates)
        command.round.release()
        return Applied(
            result=result,
            frames=frames_of(result.sent),
            compensate_s=0.0,
            aggregate_s=0.0,
            device_memory_bytes=0,
            digest="" if self._save is None else result.sent.digest,
        )
