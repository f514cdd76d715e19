"""Local training `gradient`: the gradient of one mini-batch at the base model.

Legend: d parameters, n examples of the client, m examples of the mini-batch.
"""

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from typing_extensions import override

from unstale.flat import FlatModel
from unstale.seeds import Generator
from unstale.training.initialise import seeded
from unstale.training.local import Kind, LocalTask, LocalTraining, LocalUpdate, load_base, own_buffers


class Gradient(LocalTraining):
    """Sends g_i, the gradient of the mean cross-entropy on one mini-batch at w_b.

        m_i = min(batch_size, n_i), drawn without replacement, independently for each task

    Source: WKAFL (Zhou et al., IEEE TPDS 2022), docs/methods/training.md#gradient
    """

    name: ClassVar[str] = "gradient"
    kind: ClassVar[Kind] = "gradient"

    batch_size: int

    @override
    def batches(self, labels_n: Tensor, rng: Generator) -> list[Tensor]:
        examples = len(labels_n)
        drawn_m = rng.choice(examples, size=min(self.batch_size, examples), replace=False)
        return [torch.from_numpy(drawn_m).to(labels_n.device)]

    @override
    def compute(self, model: FlatModel, inputs_nX: Tensor, labels_n: Tensor, task: LocalTask) -> LocalUpdate:
        (batch_m,) = task.batches
        load_base(model, task)
        with seeded(task.seed, model.parameters_d.device):
            loss = cross_entropy(model.module(inputs_nX.index_select(0, batch_m)), labels_n.index_select(0, batch_m))
            loss.backward()  # type: ignore[no-untyped-call]
        return LocalUpdate(
            vector_d=model.gradient_d.clone(),
            kind=self.kind,
            num_examples=len(labels_n),
            batch_examples=len(batch_m),
            steps=1,
            loss=loss.item(),
            learning_rate=task.learning_rate,
            buffers_b=own_buffers(model),
        )
