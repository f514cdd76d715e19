"""A process that computes clients beside another one, and what the two say to each other.

    python -m unstale.simulator.backends.beside DESCRIPTOR_OF_PIPE DESCRIPTOR_OF_SLOTS

It is told the settings of the run, says that it is ready, and from then on answers every order. It ends when the pipe
does, so that it never outlives who started it. Nothing is pickled: words are JSON, vectors lie in `Slots`.
"""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

from unstale.config import build
from unstale.config.settings import Settings
from unstale.config.training_context import training_context
from unstale.simulator.backends.backend import Computed, Job
from unstale.simulator.backends.loop import one_by_one
from unstale.simulator.backends.slots import Slots
from unstale.training.evaluate import Evaluation
from unstale.training.local import LocalUpdate
from unstale.training.trainer import Trainer

Pipe: TypeAlias = "Connection[Any, Any]"


def say(pipe: Pipe, words: object) -> None:
    pipe.send_bytes(json.dumps(words).encode())


def hear(pipe: Pipe) -> Any:
    """What the other side said. EOFError or OSError when it is gone."""
    return json.loads(pipe.recv_bytes())


def order(jobs: Sequence[Job], verdicts: Sequence[tuple[int, int, bool]], slots: Slots) -> dict[str, Any]:
    """What makes the other process compute: verdicts on clients' earlier tasks, then jobs, whose bases are put into the
    slots in their order."""
    for slot, job in enumerate(jobs):
        slots.put(slot, *job.base.parts)
    spelled = [(job.client_id, job.number, job.version, job.learning_rate, job.evaluate) for job in jobs]
    return {"verdicts": verdicts, "jobs": spelled}


def obey(words: dict[str, Any], trainer: Trainer, slots: Slots) -> list[dict[str, Any]]:
    """Do what an order says. What was made takes the place of the bases in the slots."""
    for client_id, number, kept in words["verdicts"]:
        (trainer.keep if kept else trainer.drop)(client_id, number)
    jobs = [
        Job(
            client_id=client_id,
            number=number,
            base=slots.version(slot),
            learning_rate=learning_rate,
            evaluate=evaluate,
            version=version,
        )
        for slot, (client_id, number, version, learning_rate, evaluate) in enumerate(words["jobs"])
    ]
    answer = []
    for slot, computed in enumerate(one_by_one(trainer, jobs)):
        local = computed.local
        slots.put(slot, local.vector_d, local.buffers_b, local.extra_d)
        evaluation = computed.evaluation
        answer.append(
            {
                "kind": local.kind,
                "num_examples": local.num_examples,
                "batch_examples": local.batch_examples,
                "steps": local.steps,
                "loss": local.loss,
                "learning_rate": local.learning_rate,
                "evaluation": None if evaluation is None else asdict(evaluation),
            }
        )
    return answer


def understood(answer: Sequence[dict[str, Any]], slots: Slots) -> list[Computed]:
    """What an answer to an order says was made; copied, because the slots are used again."""
    made = []
    for slot, words in enumerate(answer):
        vector_d, buffers_b, extra_d = slots.parts(slot)
        evaluation = words.pop("evaluation")
        if evaluation is not None:
            evaluation["class_accuracy"] = tuple(evaluation["class_accuracy"])
        local = LocalUpdate(
            vector_d=vector_d.clone(),
            buffers_b=buffers_b.clone() if len(buffers_b) else None,
            extra_d=None if extra_d is None else extra_d.clone(),
            **words,
        )
        made.append(
            Computed(local=local, evaluation=None if evaluation is None else Evaluation(**evaluation))
        )
    return made


def main(pipe_descriptor: int, slots_descriptor: int) -> None:
    pipe: Pipe = Connection(pipe_descriptor)
    try:
        settings = Settings.model_validate(hear(pipe))
        context = training_context(settings)
        buffers = context.model.buffers_b.numel()
        extra = build.training(settings).needs_extra
        slots = Slots(slots_descriptor, context.model.dimension, buffers, extra=extra)
        os.close(slots_descriptor)
        say(pipe, "ready")
        while True:
            say(pipe, obey(hear(pipe), context.trainer, slots))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # whoever started this process is gone, or has no more use for it


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
