"""Encodings in a simulation: clients train from decoded models, and the server decodes updates."""

from unstale import flat, translate
from unstale.learner.learner import Learner
from unstale.learner.versions import Version
from unstale.simulator import corruption
from unstale.toxics.in_flight import InFlightMessage
from unstale.training.local import LocalUpdate
from unstale_client.residuals import Payload, Residuals
from unstale_proto import encodings
from unstale_proto.encodings import FLOAT32
from unstale_proto.messages import EncodingPlan


class Encoded:
    """Models and updates as they arrive. All simulated clients support the encodings of the run.

    Args:
        plan: Of the run; None for float32.
        learner: Keeps versions.

    Attributes:
        updates: Encoding of updates.
        models: Encoding of models.
        row_numbers: D.
    """

    def __init__(self, plan: EncodingPlan | None, learner: Learner) -> None:
        dimension = learner.policy.dimension
        behind = learner.row_numbers - dimension
        self.updates = encodings.of_updates(plan, dimension, behind)
        self.models = encodings.of_models(plan, dimension, behind)
        self.row_numbers = learner.row_numbers
        self._learner = learner
        self._residuals = Residuals()
        self._received: dict[int, Version] = {}

    def version(self, number: int) -> Version:
        """A version that is kept, as clients receive it."""
        base = self._learner.base(number)
        if self.models.name == FLOAT32:
            return base
        if number not in self._received:
            frames = self.models.frames([flat.to_bytes(part) for part in base.parts])
            self._received[number] = corruption.read_version(base, frames, self.models)
        return self._received[number]

    def damaged(self, number: int, flight: InFlightMessage) -> Version:
        """A version as a client receives it in this damaged message."""
        return corruption.version(self._learner.base(number), flight, self.models)

    def forget(self, number: int) -> None:
        """Forget a version that is not needed any more."""
        self._received.pop(number, None)

    def payload(self, client_id: int, number: int, local: LocalUpdate) -> Payload:
        """Payload of an update, as its client sends it. number: of the task."""
        parts = translate.payload_parts(local)
        if self.updates.feeds_back:
            arrays = [part.numpy(force=True) for part in parts]
            return self._residuals.encode(client_id, number, arrays, self.updates)[0]
        return self.updates.frames([flat.to_bytes(part) for part in parts])

    def settle(self, client_id: int, number: int, *, accepted: bool) -> None:
        """A client knows the verdict on its update."""
        if self.updates.feeds_back:
            self._residuals.settle(client_id, number, accepted=accepted)
