"""Stages around a policy: what is done to the updates before it, and to its step after it. One file a stage."""

from unstale.policies.stages.build import wrapped

__all__ = ["wrapped"]
