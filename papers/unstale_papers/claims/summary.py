"""Every claim of every paper with the verdict of its largest results. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from unstale_papers.claims.headlines import Headline
from unstale_papers.claims.sizes import SizedComparison
from unstale_papers.comparison import Comparison
from unstale_papers.pairs import compared
from unstale_papers.preset import Claim, Preset
from unstale_papers.scale import Scale
from unstale_papers.verdicts import Printed, Verdict, verdicts


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedVerdict:
    """A verdict on results of one size. scale: of the cells that the claim compares. run_scale: as the user gave it.
    computed_for: as in `SizedComparison`.
    """

    verdict: Verdict
    scale: Scale
    run_scale: Scale
    computed_for: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryRow:
    """A claim. headline: None for one that is no headline claim. printed: figures of all published numbers, None
    without any. results: the largest size first; empty if not run.
    """

    preset: Preset
    claim: Claim
    headline: Headline | None
    printed: Printed | None
    results: Sequence[SizedVerdict]

    @property
    def largest(self) -> SizedVerdict | None:
        """The verdict of the largest size with a number, else of the largest; None if not run."""
        with_number = (one for one in self.results if one.verdict.figures is not None)
        return next(with_number, self.results[0] if self.results else None)


def rows(
    presets: Sequence[Preset], sized: Iterable[SizedComparison], headlines: Mapping[tuple[str, str], Headline]
) -> list[SummaryRow]:
    """Every claim: headline claims in their order, then the others in that of the presets.

    sized: the largest size first. headlines: of claims that the presets have.
    """
    results: dict[tuple[str, str], list[SizedVerdict]] = {}
    for one in sized:
        for verdict in verdicts(one.comparison):
            if verdict.is_run:
                preset = one.comparison.preset
                of_claim = results.setdefault((preset.name, verdict.claim.text), [])
                found = _sized(one, preset, verdict)
                # Runs without iterations to scale are of several sizes of a preset, and of one of the claim's cells.
                if all((found.scale, verdict) != (other.scale, other.verdict) for other in of_claim):
                    of_claim.append(found)
    every = {
        (preset.name, claim.text): SummaryRow(
            preset=preset,
            claim=claim,
            headline=headlines.get((preset.name, claim.text)),
            printed=unmeasured.printed,
            results=results.get((preset.name, claim.text), ()),
        )
        for preset in presets
        for unmeasured in verdicts(Comparison(preset=preset, records={}))
        for claim in [unmeasured.claim]
    }
    return [*(every[key] for key in headlines), *(row for row in every.values() if row.headline is None)]


def _sized(one: SizedComparison, preset: Preset, verdict: Verdict) -> SizedVerdict:
    cells = [cell for pair in compared(preset, verdict.claim) for cell in pair if cell is not None]
    return SizedVerdict(verdict=verdict, scale=one.scale.at(cells), run_scale=one.scale, computed_for=one.computed_for)
