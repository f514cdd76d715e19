"""Writes the conformance kit's golden sequences from the oracles: `cd tests && python -m oracles.write_vectors`.

One file a policy, `conformance/vectors/<policy>.json` in the package:

    policy, clients (N), dimension (d), seed, round_size, rounds    arguments of `policies.create`
    cases: [{
        loop: "k-async" | "availability", profile, settings
        model: [d]                  w_0
        steps: [{                   one a round, in order; the version is its position
            rate                    eta
            clients, staleness, examples, batch_sizes, losses, local_rates: [K], in order of arrival
            gradients: [K][d]       g
            extras: [K][d]          SCAFFOLD's second vectors; absent for all others
            counts                  false in a round in which the policy waits
            weights: [K]            weight of each update in the step
            sent: [d]               SCAFFOLD's c after the round; absent for all others
            model: [d]              w after the round, float64
        }]
    }]

An update was computed from the model after `version - staleness` rounds. Inputs are multiples of 1/64 and rates powers
of two: float32 holds them exactly. No choice lies within `sequences.MARGIN` of its threshold.
"""

import json
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

import unstale
from oracles.registry import Case, cases, oracle
from oracles.sequences import Round, play, sixty_fourths

FOLDER = Path(unstale.__file__).parent / "conformance" / "vectors"
RUN = {"clients": 4, "dimension": 3, "seed": 11, "round_size": 3, "rounds": 10}
LOOPS = ("k-async", "availability")


def files() -> dict[str, str]:
    """The text of each file by the policy's name."""
    ordered = sorted(cases(RUN["clients"]), key=lambda case: case.policy)
    return {
        policy: _text(policy, [_case(case, loop) for case in of_policy for loop in LOOPS])
        for policy, of_policy in groupby(ordered, key=lambda case: case.policy)
    }


def _case(case: Case, loop: str) -> dict[str, Any]:
    subject = oracle(case.policy, profile=case.profile, **RUN, **case.settings)
    rounds = play(subject, loop, seed=RUN["seed"], rounds=RUN["rounds"], grid=sixty_fourths, model_grid=None)
    return {
        "loop": loop,
        "profile": case.profile,
        "settings": dict(case.settings),
        "model": _numbers(rounds[0].w),
        "steps": [_step(played) for played in rounds],
    }


def _step(played: Round) -> dict[str, Any]:
    updates = played.updates
    step: dict[str, Any] = {
        "rate": played.eta,
        "clients": [u.client for u in updates],
        "staleness": [u.s for u in updates],
        "examples": [u.n for u in updates],
        "batch_sizes": [u.m for u in updates],
        "losses": [u.loss for u in updates],
        "local_rates": [u.eta_l for u in updates],
        "gradients": [_numbers(u.g) for u in updates],
    }
    if played.sent is not None:
        step |= {"extras": [_numbers(u.extra) for u in updates], "sent": _numbers(played.sent)}
    return {**step, "counts": played.counts, "weights": _numbers(played.weights), "model": _numbers(played.w_next)}


def _numbers(vector: Iterable[float]) -> list[float]:
    """Twelve digits: far below the tolerance, and above differences between machines."""
    return [round(float(value), 12) + 0.0 for value in vector]


def _text(policy: str, described: list[dict[str, Any]]) -> str:
    """JSON with a line a round."""
    lines = ["{", f' "policy": {json.dumps(policy)},', f" {json.dumps(RUN)[1:-1]},", ' "cases": [']
    for number, case in enumerate(described):
        head = {key: value for key, value in case.items() if key != "steps"}
        lines.append(f"  {json.dumps(head)[:-1]}, " + '"steps": [')
        lines.append(",\n".join("   " + json.dumps(step, separators=(",", ":")) for step in case["steps"]))
        lines.append("  ]}" if number == len(described) - 1 else "  ]},")
    return "\n".join([*lines, " ]", "}", ""])


def main() -> None:
    """Write all files, and delete those of removed policies."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in FOLDER.glob("*.json"):
        old.unlink()
    for policy, text in files().items():
        (FOLDER / f"{policy}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
