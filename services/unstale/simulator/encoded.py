"""What encodings do to what goes to and fro: clients train from models as they come out, and what comes in of an update
is what came out of its client."""

from unstale import flat, translate
from unstale.client.residuals import Payload, Residuals
from unstale.learner.learner import Learner
from unstale.learner.versions import Version
from unstale.simulator import corruption
from unstale.toxics.in_flight import InFlightMessage
from unstale.training.local import LocalUpdate
from unstale_proto import encodings
from unstale_proto.encodings import FLOAT32
from unstale_proto.messages import EncodingPlan


class Encoded:
    """plan: of the run; None for float32. learner: keeps versions.

    updates, models: their encodings; all simulated clients can do what the run wants. row_numbers: D.
    """

    def __init__(self, plan: EncodingPlan | None, learner: Learner) -> None:
        dimension = learner.policy.dimension
        behind = learner.row_numbers - dimension
        self.updates = encodings.of_updates(plan, dimension, behind)
        self.models = encodings.of_models(plan, dimension, behind)
        self.row_numbers = learner.row_numbers
        self._learner = learner
        self._residuals = Residuals()
        self._come: dict[int, Version] = {}

    def version(self, number: int) -> Version:
        """A version that is kept, as it comes to clients."""
        base = self._learner.base(number)
        if self.models.name == FLOAT32:
            return base
        if number not in self._come:
            frames = self.models.frames([flat.to_bytes(part) for part in base.parts])
            self._come[number] = corruption.read_version(base, frames, self.models)
        return self._come[number]

    def damaged(self, number: int, flight: InFlightMessage) -> Version:
        """The same, when it came like this."""
        return corruption.version(self._learner.base(number), flight, self.models)

    def forget(self, number: int) -> None:
        """Nobody will ask for this version again."""
        self._come.pop(number, None)

    def payload(self, client_id: int, number: int, local: LocalUpdate) -> Payload:
        """Of an update, as it leaves. number: of the task."""
        return self._residuals.encode(client_id, number, translate.payload_parts(local), self.updates)[0]

    def settle(self, client_id: int, number: int, *, accepted: bool) -> None:
        """A client knows what became of its update."""
        self._residuals.settle(client_id, number, accepted=accepted)
