"""The signal of FedHist's client utilities: similarity of an update to later ones from the same model.

Runs the FedHist cells of fh-t2, and compares each update with the mean of those computed from the model of its round
that arrived within h rounds: the cosine behind its sender's utility. It is computed beside the policy, from the
received updates; the run does not change.

    python -m benchmarks.fedhist_utilities --data cifar10.npz [--rounds 600]
"""

import argparse
from collections import deque
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from benchmarks import machine, report
from unstale.compensators import Compensated, Compensator, CompensatorContext, Made, Outcome, StaleRound
from unstale.config.compensation import local_steps
from unstale.config.settings import Settings, SimulationSettings
from unstale.part_settings import PartSettings
from unstale.settings.learning import DataSettings
from unstale.simulator.assemble import simulation
from unstale_papers.presets.fedhist import fh_t2

CPU = torch.device("cpu")
CELLS = {cell.labels["beta"]: cell for cell in fh_t2().cells if cell.labels["method"] == "FedHist"}
H = 50  # N / (2 K)


class CosineRecorder(Compensator[PartSettings]):
    """Changes no update. cosines: of the updates with later ones to compare. sizes: |S| of each of their rounds."""

    source = "ours"

    def __init__(self, context: CompensatorContext) -> None:
        super().__init__(PartSettings(), context)
        self.cosines: list[float] = []
        self.sizes: list[int] = []
        self._rounds: deque[tuple[int, list[int], Tensor]] = deque(maxlen=H + 1)

    def take(self, stale: StaleRound, made: Made) -> Outcome:  # noqa: ARG002  (no estimate)
        rows_Kd = torch.stack([each.vector_d for each in stale.updates])
        self._rounds.append((stale.version, [each.base_version for each in stale.updates], rows_Kd))
        self._judge(stale.version - H)
        return Outcome(vectors={}, counts_as_fresh=(), updates=[Compensated() for _ in stale.updates])

    def _judge(self, version: int) -> None:
        judged = [rows_Kd for at, _, rows_Kd in self._rounds if at == version]
        since = [
            rows_Kd[place] for _, bases, rows_Kd in self._rounds for place, base in enumerate(bases) if base == version
        ]
        if judged and since:
            self.sizes.append(len(since))
            self.cosines += cosine_similarity(judged[0], torch.stack(since).mean(0)[None]).tolist()


def row(beta: str, rounds: int, data: Path) -> list[str]:
    """The result in the cell of one beta, in so many rounds."""
    cell = CELLS[beta]
    settings = cell.settings.model_copy(
        update={
            "rounds": rounds,
            "evaluate_every": rounds,
            "data": DataSettings(name="npz", path=str(data), normalise=cell.settings.data.normalise),
            "simulation": SimulationSettings(backend="loop"),
            "device": "cpu",
            "threads": 1,
        }
    )
    looking: list[CosineRecorder] = []

    def look(settings: Settings, *_: object) -> CosineRecorder:
        context = CompensatorContext(network=None, steps=local_steps(settings), seed=settings.seed, device=CPU)
        looking.append(CosineRecorder(context))
        return looking[0]

    simulation(settings, on_progress=lambda _: None, compensator_of=look).run()
    cosines = torch.tensor(looking[0].cosines)
    tenth, median, ninth = torch.quantile(cosines, torch.tensor([0.1, 0.5, 0.9])).tolist()
    sizes = torch.tensor(looking[0].sizes, dtype=torch.float64)
    return [
        beta,
        f"{len(cosines):,}",
        f"{sizes.mean():.1f}",
        *(f"{value:.2f}" for value in (tenth, median, ninth)),
        f"{(cosines >= cell.settings.policy.settings['similarity_min']).double().mean():.0%}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="CIFAR-10 as an .npz of four arrays")
    parser.add_argument("--rounds", type=int, default=600)
    options = parser.parse_args()
    if options.rounds <= H:
        parser.error(f"--rounds is {options.rounds}, expected more than {H}, after which the first is judged")
    torch.set_num_threads(1)
    command = f"python -m benchmarks.fedhist_utilities --data cifar10.npz --rounds {options.rounds}"
    print(f"# How like updates are that came from one model\n\n{machine.description(command)}\n")
    print(
        f"FedHist in fh-t2, seed 0, {options.rounds} rounds. S: the updates that came from the same model within {H} "
        "rounds of the one that is judged. Useful: with a cosine of the preset's similarity_min or more.\n"
    )
    headings = ["beta", "judged", "updates in S", "cosine, a tenth below", "half", "nine tenths", "useful"]
    print(report.table(headings, [row(beta, options.rounds, options.data) for beta in CELLS]))


if __name__ == "__main__":
    main()
