"""The golden vectors of stale updates in `unstale conformance`: first-order compensation, and weighting."""

import pytest
import torch

from unstale.compensators.first_order import FirstOrder
from unstale.conformance import appendix_b, examine

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("policy", "case"), [("direct", appendix_b.COMPENSATED_CASE), ("weighted", "appendix B, staleness 40")]
)
def test_the_compensated_case_is_in_the_report_and_passes(policy: str, case: str) -> None:
    (row,) = [row for row in examine((policy,)) if row.case == case]
    assert row.verdict == "pass"
    assert row.expected == "within 1e-06 of the written results"


def test_other_policies_have_no_compensated_case() -> None:
    assert appendix_b.COMPENSATED_CASE not in {row.case for row in examine(("weighted",))}


@pytest.mark.parametrize("factor", [0.0, 0.5, 2.0])
def test_a_wrong_correction_is_detected(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    estimate = FirstOrder.estimate

    def wrong(self, update, model_d):
        return update.vector_d + factor * (estimate(self, update, model_d) - update.vector_d)

    monkeypatch.setattr(FirstOrder, "estimate", wrong)
    finding = appendix_b.first_order(CPU)
    assert not finding.passed
    assert finding.got.endswith("off in round 0")
