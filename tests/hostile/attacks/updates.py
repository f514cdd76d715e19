"""Attacks by updates: too long vectors, and false claims."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from hostile.attacks.attack import Attack, Facts
from hostile.member import Member, members
from hostile.target import Target
from unstale_proto.limits import INTEGER_MAX, METRICS_MAX
from unstale_proto.messages import Ack, OwnEvaluation, Task, Update

PAUSE_S = 0.04
"""Pause between two updates of a hostile client, about as fast as the honest ones."""

Vector = npt.NDArray[np.float32]
Answer = Callable[[Member, Task, Target], tuple[Update, Vector]]

NORM = 1.0
"""Norm of a harmless update over the learning rate: as that of honest clients."""


def _answering(answer: Answer) -> Callable[[Target], Facts]:
    """An attack in which every hostile client answers its tasks by this function."""

    def run(target: Target) -> Facts:
        totals: dict[str, float] = {"updates": 0, "accepted": 0}
        with members(target) as joined:
            turns = [_turns(member, answer, target) for member in joined]
            while target.is_active() and turns:
                turns = [turn for turn in turns if next(turn, None) is not None]
                target.wait(PAUSE_S)
            for member in joined:
                for key, count in member.verdicts.items():
                    totals[key] = totals.get(key, 0) + count
                    totals["updates"] += count
        return totals

    return run


def _turns(member: Member, answer: Answer, target: Target) -> Iterator[bool]:
    """Answers one task after the other; True after each step."""
    while target.is_active():
        found = member.next_task()
        if found is None:
            return
        update, vector = answer(member, found[0], target)
        member.send(update, [vector.astype("<f4").tobytes()])
        for _ in range(100):  # the verdict, and earlier messages
            heard = member.next(0.05)
            if heard is None or isinstance(heard[0], Ack):
                break
        yield True


def _direction(member: Member, target: Target) -> Vector:
    """A random direction of length 1, [d]."""
    drawn = target.draws.standard_normal(member.dimension).astype(np.float32)
    return np.asarray(drawn / np.linalg.norm(drawn), dtype=np.float32)


def _delta(member: Member, task: Task, target: Target, norm: float) -> Vector:
    """A delta of this norm over the learning rate of its task."""
    return _direction(member, target) * np.float32(norm * task.learning_rate)


def _scaled(factor: float) -> Answer:
    def answer(member: Member, task: Task, target: Target) -> tuple[Update, Vector]:
        return member.update(task), _delta(member, task, target, factor * NORM)

    return answer


def _other_rate(member: Member, task: Task, target: Target) -> tuple[Update, Vector]:
    vector = _direction(member, target) * np.float32(9e7)
    return member.update(task, learning_rate=1e6), vector


def _many_examples(member: Member, task: Task, target: Target) -> tuple[Update, Vector]:
    return member.update(task, num_examples=INTEGER_MAX), _delta(member, task, target, NORM)


def _long_extra(member: Member, task: Task, target: Target) -> tuple[Update, Vector]:
    extra = _direction(member, target) * np.float32(1e15)
    return member.update(task), np.concatenate([_delta(member, task, target, NORM), extra])


def _small(member: Member, task: Task, target: Target) -> tuple[Update, Vector]:
    return member.update(task), _delta(member, task, target, 1e-4)


def _gradient(member: Member, task: Task, target: Target) -> tuple[Update, Vector]:
    return member.update(task, kind="gradient"), _delta(member, task, target, NORM)


def _evaluation(member: Member, task: Task, target: Target) -> tuple[Update, Vector]:
    claimed = OwnEvaluation(accuracy=0.0, loss=1e30, examples=INTEGER_MAX)
    return member.update(task, evaluation=claimed), _delta(member, task, target, NORM)


def _invented_metrics(member: Member, task: Task, target: Target) -> tuple[Update, Vector]:
    names = [f"{int(number):x}" for number in target.draws.integers(INTEGER_MAX, size=METRICS_MAX)]
    return member.update(task, metrics=dict.fromkeys(names, 1e300)), _delta(member, task, target, NORM)


def _not_finite(member: Member, task: Task, target: Target) -> tuple[Update, Vector]:
    vector = _delta(member, task, target, NORM)
    vector[int(target.draws.integers(len(vector)))] = target.draws.choice([np.nan, np.inf, -np.inf])
    return member.update(task), vector


def _attack(name: str, about: str, answer: Answer, scene: str = "plain", **more: Any) -> Attack:
    more = {"learns": True, **more}
    return Attack(name=name, about=about, scenes=(scene,), run=_answering(answer), **more)


ATTACKS = (
    _attack("scaled-1e3", "deltas of a thousand times the usual norm", _scaled(1e3)),
    _attack("scaled-1e16", "deltas of 1e16 times the usual norm", _scaled(1e16)),
    _attack("not-finite", "deltas with a NaN or an infinity", _not_finite, none_of=("accepted",)),
    _attack(
        "other-learning-rate",
        "a delta of norm 9e7 that claims a learning rate of 1e6, against norm_max 100",
        _other_rate,
        "fedasync",
        none_of=("accepted",),
    ),
    _attack(
        "many-examples",
        "2^63 - 1 examples claimed, where updates are weighted by their examples",
        _many_examples,
        "samples",
    ),
    _attack(
        "long-extra-vector",
        "SCAFFOLD's extra vector of norm 1e15, against norm_max 1000",
        _long_extra,
        "scaffold",
        none_of=("accepted",),
    ),
    _attack(
        "under-a-low-bound",
        "norm_max below every honest update, and an attacker below it",
        _small,
        "low-bound",
        logged="norm_max",
        honest_rounds=False,
        learns=False,
    ),
    _attack("gradient-for-delta", "updates of the kind that was not asked for", _gradient, none_of=("accepted",)),
    _attack("unasked-evaluation", "evaluations that were not asked for", _evaluation),
    _attack("invented-metrics", "32 metrics of new names with each update", _invented_metrics),
)
