"""Bytes, error and time of each encoding on a real update and model, and its effect on a run.

The update is that of the first client in the tenth round of FedAvg over ten clients, with lenet_28 on MNIST, or on
scikit-learn's digits without MNIST. The runs are those of `unstale simulate`, three seeds each.

    python -m benchmarks.encodings [--path mnist.npz] [--quick]
"""

import argparse
import statistics
import time
from typing import Any

import numpy as np
import torch

from benchmarks import report

ROUNDS, CLIENTS = 10, 10
SIZE_OF_TIMING = 11_250_000  # numbers: 45 MB in float32
RUNS: dict[str, dict[str, Any]] = {
    "float32": {},
    "updates bfloat16": {"updates": "bfloat16"},
    "updates float16": {"updates": "float16"},
    "updates int8": {"updates": "int8"},
    "updates top-k, fraction 0.1": {"updates": "top-k", "fraction": 0.1},
    "updates top-k, fraction 0.01": {"updates": "top-k", "fraction": 0.01},
    "updates top-k, fraction 0.001": {"updates": "top-k", "fraction": 0.001},
    "models bfloat16": {"models": "bfloat16"},
    "models int8": {"models": "int8"},
    "both bfloat16": {"updates": "bfloat16", "models": "bfloat16"},
    "both int8": {"updates": "int8", "models": "int8"},
}
WAYS: dict[str, dict[str, Any]] = {
    "float32": {"updates": "float32"},
    "bfloat16": {"updates": "bfloat16"},
    "float16": {"updates": "float16"},
    "int8, block 256": {"updates": "int8"},
    "int8, block 32": {"updates": "int8", "block": 32},
    "top-k, fraction 0.1": {"updates": "top-k", "fraction": 0.1},
    "top-k, fraction 0.01": {"updates": "top-k", "fraction": 0.01},
}

Vector = np.ndarray[Any, Any]


def real(path: str | None) -> tuple[Vector, Vector]:
    """A model and a client's update from it: [d] float32 each."""
    from unstale.config import Settings
    from unstale.config.workspace import training_context

    settings = Settings(
        clients=CLIENTS,
        device="cpu",
        model={"name": "lenet_28" if path else "digits_cnn"},
        data={"name": "npz", "path": path} if path else {"name": "digits"},
        training={"learning_rate": 0.1, "batch_size": 32, "steps": 5},
    )
    trainer = (context := training_context(settings)).trainer
    model_d = context.model.parameters_d.clone()
    for number in range(ROUNDS):
        made = [trainer.train(client, number, model_d, 0.1).vector_d for client in range(CLIENTS)]
        before_d, model_d = model_d, model_d - torch.stack(made).mean(0)
    return before_d.numpy(), made[0].numpy()


def encoding_of(way: dict[str, Any], dimension: int) -> Any:
    from unstale.config.settings import EncodingSettings
    from unstale_proto import encodings

    plan = encodings.plan(**EncodingSettings(**way).model_dump(), dimension=dimension)
    return encodings.of_updates(plan, dimension)


def through(encoding: Any, vector_d: Vector) -> tuple[Vector, float, float]:
    """The decoded vector, and seconds to encode and to decode."""
    out_d = np.empty_like(vector_d)
    target, offset = out_d.data.cast("B"), 0
    began_s = time.perf_counter()
    frames = encoding.frames([vector_d.data.cast("B")])
    encoded_s = time.perf_counter()
    for piece in encoding.decode(frames):
        target[offset : offset + len(piece)] = piece
        offset += len(piece)
    return out_d, encoded_s - began_s, time.perf_counter() - encoded_s


def error(encoding: Any, vector_d: Vector) -> str:
    """L2 norm of the error over that of the vector."""
    out_d, *_ = through(encoding, vector_d)
    return f"{float(np.linalg.norm(out_d - vector_d) / np.linalg.norm(vector_d)):.2g}"


def of_numbers(path: str | None, repeats: int) -> str:
    """A table: bytes, errors and times of each encoding."""
    model_d, update_d = real(path)
    large_d = np.resize(update_d, SIZE_OF_TIMING)
    rows = []
    for name, way in WAYS.items():
        encoding = encoding_of(way, len(update_d))
        large = encoding_of(way, SIZE_OF_TIMING)
        times = [through(large, large_d)[1:] for _ in range(repeats)]
        rows.append(
            (
                name,
                f"{encoding.payload_bytes:,}",
                f"{4 * len(update_d) / encoding.payload_bytes:.1f}",
                error(encoding, update_d),
                "never sent so" if encoding.feeds_back else error(encoding, model_d),
                *(f"{1000 * statistics.median(seconds):.0f} ms" for seconds in zip(*times, strict=True)),
            )
        )
    headings = ("encoding", "bytes", "times smaller", "error, update", "error, model", "encode", "decode")
    return report.table(headings, rows)


def of_runs(seeds: int, rounds: int) -> str:
    """A table: accuracy early and late, by encoding."""
    from unstale.config import Settings
    from unstale.simulator.assemble import simulation

    rows = []
    for name, way in RUNS.items():
        early, late = [], []
        for seed in range(seeds):
            accuracies: dict[int, float] = {}
            settings = Settings(
                seed=seed,
                device="cpu",
                rounds=rounds,
                evaluate_every=rounds // 5,
                encoding=way,
                simulation={"backend": "loop"},
            )
            simulation(settings, on_progress=lambda now: accuracies.update({now.version: now.accuracy})).run()  # noqa: B023
            early.append(accuracies[rounds // 5])
            late.append(accuracies[rounds])
        rows.append((name, *(report.median_and_spread(found, ".4f") for found in (early, late))))
    return report.table(("run", f"after {rounds // 5} rounds", f"after {rounds} rounds"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.encodings", description=__doc__)
    parser.add_argument("--path", help="mnist.npz")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    repeats, seeds, rounds = (1, 1, 20) if arguments.quick else (5, 3, 100)
    data = "lenet_28 on MNIST" if arguments.path else "digits_cnn on digits"
    print(
        f"An update and a model of {data}; error: L2 norm, over that of the numbers themselves. "
        f"Times are of {SIZE_OF_TIMING:,} numbers, on one thread, medians of {repeats}.\n\n"
        f"{of_numbers(arguments.path, repeats)}\n\n"
        f"Test accuracy of `unstale simulate --rounds {rounds}`, by encoding: median of {seeds} seeds, and range.\n\n"
        f"{of_runs(seeds, rounds)}"
    )


if __name__ == "__main__":
    main()
