"""The oracle: the true unstale update, which only a simulation knows.

Legend: d parameters.
"""

from pydantic import Field

from unstale.compensators.compensator import (
    Compensated,
    Compensator,
    CompensatorContext,
    Made,
    Outcome,
    StaleRound,
)
from unstale.errors import UserError
from unstale.part_settings import PartSettings


class OracleSettings(PartSettings):
    counts_as_fresh: bool = Field(
        True,
        description="Whether a policy that weighs by staleness takes what was replaced for fresh.",
        json_schema_extra={"source": "ours; false is WKAFL's released code: fresh gradients, stale counters"},
    )


class Oracle(Compensator[OracleSettings]):
    """A stale update is replaced by the one that its client makes of the current model: what estimates are up against.

    Source: Gradient inversion (Wang & Gao, 2023), docs/methods/compensators.md#oracle
    """

    Settings = OracleSettings
    source = "Gradient inversion (Wang & Gao, 2023), docs/methods/compensators.md#oracle"
    is_recorded = True
    only_simulated = True

    def __init__(self, settings: OracleSettings, context: CompensatorContext) -> None:
        super().__init__(settings, context)
        if context.steps.unknown is not None:
            raise UserError(
                f"training.name is {context.steps.unknown!r}, whose updates depend on more than model and data, "
                "expected sgd, gradient or fedprox for compensator.name oracle"
            )
        if context.network is not None and context.fresh_update is None:
            raise UserError(
                "compensator.name is 'oracle', which knows what clients would send; that is so in `unstale simulate` "
                "only, expected gradient-inversion, first-order, auto or none"
            )

    def make(self, stale: StaleRound) -> Made:
        fresh_update = self.context.fresh_update
        assert fresh_update is not None
        return {
            "estimates": {
                place: fresh_update(update, stale)
                for place, update in enumerate(stale.updates)
                if update.staleness > 0
            }
        }

    def take(self, stale: StaleRound, made: Made) -> Outcome:
        vectors = {place: vector_d.to(self.context.device) for place, vector_d in made["estimates"].items()}
        return Outcome(
            vectors=vectors,
            counts_as_fresh=vectors.keys() if self.settings.counts_as_fresh else (),
            updates=[
                Compensated(method="oracle", share=1.0) if place in vectors else Compensated()
                for place in range(len(stale.updates))
            ],
        )
