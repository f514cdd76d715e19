"""gi-controls: its cells, its late clients, and the claims that its results answer."""

from pathlib import Path

import numpy as np

from unstale.config import Settings
from unstale.config.scenario import Held, conditions
from unstale_papers.presets.inversion_controls import CONTROLS, NUMBERS, gi_controls

CLASSES, CLIENTS = 10, 100


def test_methods_differ_only_in_policy_and_compensator() -> None:
    cells = gi_controls().cells
    assert [cell.labels["method"] for cell in cells] == [
        *("unstale", "direct", "weighted", "first order", "GI (ours)", "GI 50", "GI 150")
    ]
    assert len({cell.scenario for cell in cells}) == 1
    rest = [cell.settings.model_dump(exclude={"policy", "compensator"}) for cell in cells]
    assert rest == [rest[0]] * len(cells)
    numbers = {cell.labels["method"]: cell.settings.compensator.settings.get("iterations") for cell in cells}
    assert [numbers[f"GI {number}"] for number in NUMBERS] == list(NUMBERS)


def test_the_holders_of_class_5_alone_are_late(tmp_path: Path) -> None:
    (scenario,) = {cell.scenario for cell in gi_controls().cells}
    assert scenario is not None
    file = tmp_path / "late.yaml"
    file.write_text(scenario)
    # As the partition gives them: ten clients for each class, with 108 examples each.
    of_each = CLIENTS // CLASSES
    counts = np.zeros((CLIENTS, CLASSES), dtype=np.int64)
    counts[np.arange(CLIENTS), np.arange(CLIENTS) // of_each] = 108
    late = conditions(Settings(clients=CLIENTS, scenario={"name": str(file)}), of=Held(counts)).stale_rounds
    assert dict(late) == dict.fromkeys(range(50, 60), CONTROLS.staleness)


def test_a_client_computes_one_gradient_of_all_its_examples_in_a_tenth_of_the_rounds() -> None:
    settings = gi_controls().cells[0].settings
    examples = 60_000 * settings.data.share / settings.clients
    assert settings.training.epochs == 1
    assert settings.training.batch_size >= 1.25 * examples  # classes of MNIST are of unlike size
    assert settings.selector.size == settings.clients // 10


def test_every_comparison_is_of_two_cells() -> None:
    labels = {cell.labels["method"] for cell in gi_controls().cells}
    for claim in gi_controls().claims:
        assert {claim.better["method"], claim.worse["method"]} <= labels
        assert claim.better != claim.worse
