"""The conformance kit: does a policy compute what its definition says, and keep to what every policy promises."""

from unstale.conformance.kit import Row, examine

__all__ = ["Row", "examine"]
