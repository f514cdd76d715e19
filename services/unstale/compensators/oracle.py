"""The compensator `oracle`: replaces stale updates by fresh ones, which only a simulation can compute.

Legend: d parameters.
"""

from unstale.compensators.compensator import Compensated, Compensator, CompensatorContext, Made, Outcome, StaleRound
from unstale.errors import UserError
from unstale.part_settings import PartSettings, setting


class OracleSettings(PartSettings):
    counts_as_fresh: bool = setting(
        True,
        "Whether a policy that weighs by staleness treats replaced updates as fresh.",
        "ours; WKAFL's released code does not: it pairs fresh gradients with stale counters",
    )


class Oracle(Compensator[OracleSettings]):
    """Replaces a stale update by that of its client on the current model: no estimate of it can be closer.

    Source: Gradient inversion (Wang & Gao, 2023), docs/methods/compensators.md#oracle
    """

    Settings = OracleSettings
    is_recorded = True
    only_simulated = True

    def __init__(self, settings: OracleSettings, context: CompensatorContext) -> None:
        super().__init__(settings, context)
        context.steps.check_known("compensator.name oracle")
        if context.network is not None and context.fresh_update is None:  # without a network, settings are checked only
            raise UserError(
                "compensator.name is 'oracle', which computes the clients' fresh updates and works in "
                "`unstale simulate` only, expected gradient-inversion, first-order, auto or none"
            )

    def make(self, stale: StaleRound) -> Made:
        fresh_update = self.context.fresh_update
        assert fresh_update is not None
        return {
            "estimates": {
                index: fresh_update(update, stale) for index, update in enumerate(stale.updates) if update.staleness > 0
            }
        }

    def take(self, stale: StaleRound, made: Made) -> Outcome:
        vectors = {index: vector_d.to(self.context.device) for index, vector_d in made["estimates"].items()}
        return Outcome(
            vectors=vectors,
            counts_as_fresh=vectors.keys() if self.settings.counts_as_fresh else (),
            updates=[
                Compensated(method="oracle", share=1.0) if index in vectors else Compensated()
                for index in range(len(stale.updates))
            ],
        )
