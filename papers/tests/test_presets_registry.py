"""Properties of every preset."""

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

import pytest

from unstale.config import build
from unstale.config.keys import KEYS
from unstale.errors import UserError
from unstale.training.registry import create as create_training
from unstale_papers.comparison import Comparison
from unstale_papers.pairs import compared
from unstale_papers.preset import GUIDE, Cell, Claim, Preset
from unstale_papers.presets.registry import PRESETS, make
from unstale_papers.runners import MEASUREMENTS
from unstale_papers.table_metrics import measure
from unstale_papers.verdicts import verdicts

MADE = {name: made() for name, made in PRESETS.items()}
every_preset = pytest.mark.parametrize("preset", MADE.values(), ids=MADE)


def identity(cell: Cell) -> tuple[object, ...]:
    """Everything that determines a result."""
    return (
        cell.settings.model_dump_json(),
        cell.measurement,
        repr(sorted(cell.options.items())),
        cell.scenario,
        cell.in_rounds,
        cell.in_iterations,
    )


@every_preset
def test_every_preset_builds_the_same_cells_each_time_under_its_name(preset: Preset) -> None:
    assert make(preset.name) == preset


def test_an_unknown_preset_error_suggests_the_nearest_name() -> None:
    with pytest.raises(UserError, match="unknown preset 'fh-t3'; did you mean 'fh-t"):
        make("fh-t3")


@every_preset
def test_no_two_cells_of_a_preset_are_the_same_run(preset: Preset) -> None:
    assert len({identity(cell) for cell in preset.cells}) == len(preset.cells)


@every_preset
def test_a_run_of_a_paper_refuses_no_update_for_its_norm(preset: Preset) -> None:
    # The papers have no such limit; the guide's runs are those of a user, with the default.
    expected = "adaptive" if preset.paper == GUIDE else None
    assert {cell.settings.server.norm_max for cell in preset.cells} == {expected}


@every_preset
def test_the_parts_of_every_cell_can_be_built_without_its_data(preset: Preset, tmp_path: Path) -> None:
    for number, cell in enumerate(preset.cells):
        settings = cell.settings
        if cell.scenario is not None:
            file = tmp_path / f"{number}.yaml"
            file.write_text(cell.scenario)
            assert settings.scenario.name is None
            named = settings.scenario.model_copy(update={"name": str(file)})
            settings = settings.model_copy(update={"scenario": named})
        build.check(settings)
        create_training(settings.training)


@every_preset
def test_presets_do_not_set_seed_cache_device_or_threads(preset: Preset) -> None:
    for cell in preset.cells:
        given = cell.settings
        assert (given.seed, given.data.cache, given.device, given.threads) == (
            KEYS["seed"].default,
            KEYS["data.cache"].default,
            KEYS["device"].default,
            KEYS["threads"].default,
        )


@every_preset
def test_measures_and_measurements_exist(preset: Preset) -> None:
    for name in (*preset.measures, *(claim.measure for claim in preset.claims)):
        assert measure(name).name == name
    for cell in preset.cells:
        assert cell.measurement in MEASUREMENTS
        assert set(cell.published) <= set(preset.measures), cell.name


@every_preset
def test_the_subject_of_every_claim_exists(preset: Preset) -> None:
    for claim in preset.claims:
        assert compared(preset, claim), claim.text


@every_preset
def test_figure_lines_and_scaled_keys_exist(preset: Preset) -> None:
    for cell in preset.cells:
        assert {curve.line for curve in preset.curves} <= set(cell.labels)
        for key in (*cell.in_rounds, *cell.in_iterations):
            held: object = cell.settings.model_dump()
            for part in () if key in cell.options else key.split("."):
                assert isinstance(held, Mapping)
                held = held[part]


@every_preset
def test_every_source_is_given_once_with_a_known_tag(preset: Preset) -> None:
    assert preset.sources
    for source in preset.sources:
        assert source.tag in ("paper", "[M]", "[P]") or source.tag.startswith("R:"), source
    assert len(set(preset.sources)) == len(preset.sources), "a source occurs twice"


@every_preset
def test_the_source_of_a_key_gives_the_value_of_the_cells(preset: Preset) -> None:
    for source in preset.sources:
        if source.key not in KEYS or " " in source.value:
            continue  # a description, or a value that an axis sets
        for cell in preset.cells:
            held: object = cell.settings.model_dump()
            for part in source.key.split("."):
                assert isinstance(held, Mapping)
                held = held[part]
            assert str(held) == source.value or held == number(source.value), (source, cell.name)


def number(text: str) -> float | None:
    """The number, also of a fraction such as 1/2."""
    try:
        return float(Fraction(text))
    except ValueError:
        return None


@every_preset
def test_printed_numbers_support_the_claims_about_them(preset: Preset) -> None:
    for claim in preset.claims:
        ahead = printed_advantages(preset, claim)
        if not ahead:
            continue
        # A printed "< 45 %" is stored as 45.
        assert min(ahead) >= 0 if claim.level is not None else min(ahead) > 0, claim.text
        limit = claim.at_least if claim.as_ratio else claim.at_least - 1e-9
        assert (min(ahead) if claim.each else sum(ahead) / len(ahead)) >= limit, claim.text


def printed_advantages(preset: Preset, claim: Claim) -> list[float]:
    """Printed differences, or ratios."""
    found = []
    sign = 1 if measure(claim.measure).better == "higher" else -1
    for pair in compared(preset, claim):
        us, them = (
            claim.level if cell is None else getattr(cell.published.get(claim.measure), "value", None) for cell in pair
        )
        if us is not None and them is not None:
            found.append((us / them) ** sign if claim.as_ratio else sign * (us - them))
    return found


@every_preset
def test_without_measurements_no_claim_is_decided(preset: Preset) -> None:
    reached = verdicts(Comparison(preset=preset, records={}))
    assert {verdict.answer for verdict in reached} <= {"cannot be told"}


def test_presets_share_equal_runs() -> None:
    """12 of 16 cells of fh-f4 are not in Table I, 18 of 24 of wk-t3 not in wk-t2, 6 of 8 of wk-f6 not in wk-f5."""
    fedhist = [identity(cell) for name in ("fh-t1", "fh-t2", "fh-f4", "fh-f5") for cell in MADE[name].cells]
    assert len(fedhist) == 144 + 24 + 16 + 64
    assert len(set(fedhist)) == 144 + 12 + 64
    wkafl = [identity(cell) for name, preset in MADE.items() if name.startswith("wk-") for cell in preset.cells]
    assert len(wkafl) == 18 + 24 + 8 + 8 + 4
    assert len(set(wkafl)) == 18 + 18 + 8 + 6 + 4
