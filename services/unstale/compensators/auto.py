"""The compensator `auto`: inversion while it helps and the budget lasts, then first order, then nothing."""

from unstale.compensators.compensator import UNCHANGED
from unstale.compensators.gradient_inversion import FIRST_ORDER, GradientInversion


class Auto(GradientInversion):
    """Gradient inversion that also ends when the direction of its estimates is not better than that of the stale
    updates. The method with the smaller error replaces it: first-order compensation, or none.

    Inversion continues while, over the last `window` measured errors,

        mean L1(inversion) <= margin * mean L1(stale)   and   mean cosine(inversion) < mean cosine(stale)

    and updates that are not inverted are compensated to first order while mean L1(first order) < mean L1(stale), or no
    such means exist yet.
    Source: ours, docs/methods/compensators.md#auto
    """

    source = "ours, docs/methods/compensators.md#auto"

    def helps(self) -> bool:
        known = self.known
        return super().helps() and (known is None or known.cosine < known.stale_cosine)

    def lesser(self, *, has_ended: bool) -> str:  # noqa: ARG002  (the errors decide)
        recent = self.recent
        if not (recent.is_full(FIRST_ORDER) and recent.is_full(UNCHANGED)):
            return FIRST_ORDER
        return FIRST_ORDER if recent.mean(FIRST_ORDER)[0] < recent.mean(UNCHANGED)[0] else UNCHANGED
