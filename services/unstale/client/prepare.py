"""From what a server says of its run to the workplace where this process trains for it."""

from unstale.config.settings import Settings
from unstale.config.workplace import Workplace, workplace
from unstale.errors import UserError
from unstale_proto import signature
from unstale_proto.messages import TensorSpec, Welcome


def workplace_of(welcome: Welcome, own: Settings) -> Workplace:
    """Make what a welcome describes; `own` says where this machine keeps its data and which device it has.

    A server can only choose among what is built in here: it names no file and no code. Raises UserError when the model
    comes out differently from the server's.
    """
    plan = welcome.training
    settings = own.model_copy(
        update={
            "seed": welcome.seed,
            "clients": welcome.clients,
            "model": own.model.model_copy(update={"name": welcome.model}),
            "data": own.data.model_copy(
                update={"name": welcome.data, "path": own.client.data_path or own.data.path}
            ),
            "partition": own.partition.model_copy(
                update={
                    "name": welcome.partition.name,
                    "alpha": welcome.partition.alpha,
                    "min_examples": welcome.partition.min_examples,
                }
            ),
            "training": own.training.model_copy(
                update={
                    "name": plan.name,
                    "batch_size": plan.batch_size,
                    "steps": plan.steps,
                    "epochs": plan.epochs,
                    "momentum": plan.momentum,
                    "weight_decay": plan.weight_decay,
                }
            ),
        }
    )
    made = workplace(settings)
    tensors = [TensorSpec(name=name, shape=shape, dtype="float32") for name, shape, _ in made.tensors]
    if signature.digest(tensors) != welcome.signature:
        raise UserError(
            f"model {welcome.model!r} has {made.model.dimension} parameters on this machine and another signature than "
            "the server's; use the same data set and the same version of unstale on both sides"
        )
    return made
