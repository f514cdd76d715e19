"""Computes a recorded run again: each update by its client's app from the model of its task, each version from these.

python recomputed.py RUN: prints the updates of each round as JSON. For apps without `Context.state`.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from unstale import translate
from unstale.config.workspace import training_context
from unstale.flat import to_bytes
from unstale.journal.replay import RecordedRun, Replay
from unstale.learner.updates import write
from unstale.training.workload import ClientTask

NAMES = ("client_id", "task_id", "base_version", "staleness", "loss")

with RecordedRun(Path(sys.argv[1])) as run:
    run.check()
    number_of = {task.task_id: task.number for task in run.database.tasks()}
    replay = Replay(run, run.settings)
    workload = training_context(run.settings).workload
    models = [replay.learner.model_d]  # by version
    rounds = []
    for matrix_KD, updates in replay.rounds():
        for row_D, update in zip(matrix_KD, updates, strict=True):
            task = ClientTask(
                client_id=update.client_id,
                number=number_of[update.task_id],
                version=update.base_version,
                base_d=models[update.base_version],
                learning_rate=update.local_rate,
            )
            local = workload.train(task)
            parts = [to_bytes(part) for part in translate.payload_parts(local)]
            expected_D = torch.empty_like(row_D)
            write(expected_D.numpy(), parts, local.kind, local.learning_rate, len(row_D))
            assert torch.equal(row_D, expected_D), update
        models.append(replay.learner.model_d)
        rounds.append([{name: getattr(update, name) for name in NAMES} for update in updates])
    assert replay.first_difference is None, replay.first_difference
    print(json.dumps({"rounds": rounds, "conservation": asdict(run.database.conservation())}))
