"""The conformance kit: does a policy compute what its definition says, and keep to what every policy promises."""

from unstale.conformance.finding import Row
from unstale.conformance.kit import examine

__all__ = ["Row", "examine"]
