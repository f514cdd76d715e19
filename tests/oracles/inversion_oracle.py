"""The slow, obvious second version of gradient inversion and adaptive first order: plain loops, autograd, no batch.

It shares no line with unstale.compensators. First order with a constant lambda is in `averages`. Values are computed
in the type of the inputs; float64 where the signs of small gradients matter.
x: inputs [n, ...]; l: label logits [n, C]; w: parameters by name, in the network's order.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call

Parameters = dict[str, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Local:
    """kg, eta_gi and the client's own momentum and weight decay."""

    steps: int
    rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0


def soft(outputs_nC: Tensor, l_nC: Tensor) -> Tensor:
    """Mean over rows of -sum_c softmax(l)_c * log_softmax(net(x))_c."""
    target = torch.exp(l_nC) / torch.exp(l_nC).sum(dim=1, keepdim=True)
    log_q = outputs_nC - torch.log(torch.exp(outputs_nC).sum(dim=1, keepdim=True))
    rows = [-(target[row] * log_q[row]).sum() for row in range(len(l_nC))]
    return torch.stack(rows).mean()


def bce_raw(outputs_nC: Tensor, l_nC: Tensor) -> Tensor:
    """As the released code: raw l as targets of BCE with logits, where the logits are log-probabilities."""
    z = outputs_nC - torch.log(torch.exp(outputs_nC).sum(dim=1, keepdim=True))
    inside = torch.log(1 / (1 + torch.exp(-z)))
    outside = torch.log(1 - 1 / (1 + torch.exp(-z)))
    return -(l_nC * inside + (1 - l_nC) * outside).mean()


def named(network: nn.Module, w_d: Tensor) -> Parameters:
    """A flat vector as parameters by name."""
    parts, start = {}, 0
    for name, parameter in network.named_parameters():
        parts[name] = w_d[start : start + parameter.numel()].reshape(parameter.shape)
        start += parameter.numel()
    assert start == len(w_d)
    return parts


def flat(parts: Parameters) -> Tensor:
    return torch.cat([part.reshape(-1) for part in parts.values()])


def local_update(
    network: nn.Module,
    w_d: Tensor,
    x: Tensor,
    l: Tensor,  # noqa: E741
    local: Local,
    loss: Loss = soft,
) -> Tensor:
    """LU(w; x, l) = w - w_end, differentiable in x and l. The network is in eval mode: no dropout."""
    network.eval()
    start = {name: part.clone().requires_grad_(True) for name, part in named(network, w_d).items()}
    now = start
    velocity: Parameters = {}
    for _ in range(local.steps):
        value = loss(functional_call(network, now, (x,)), l)
        gradients = torch.autograd.grad(value, list(now.values()), create_graph=True)
        moved = {}
        for (name, part), gradient in zip(now.items(), gradients, strict=True):
            along = gradient + local.weight_decay * part
            if local.momentum and name in velocity:
                along = local.momentum * velocity[name] + along
            velocity[name] = along
            moved[name] = part - local.rate * along
        now = moved
    return flat({name: start[name] - now[name] for name in start})


DISTANCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "l1": lambda a_d, b_d: (a_d - b_d).abs().sum(),
    "l2": lambda a_d, b_d: ((a_d - b_d) ** 2).sum() ** 0.5,
    "cosine": lambda a_d, b_d: 1 - (a_d @ b_d) / ((a_d @ a_d) * (b_d @ b_d)) ** 0.5,
}


def disparity(
    network: nn.Module,
    w_d: Tensor,
    x: Tensor,
    l: Tensor,  # noqa: E741
    u_d: Tensor,
    local: Local,
    loss: Loss = soft,
    distance: str = "l1",
) -> Tensor:
    """D between LU(w_b; x, l) and u over all trainable parameters."""
    return DISTANCES[distance](local_update(network, w_d, x, l, local, loss), u_d)


def published_rate(iteration: int, iterations: int, rate: float = 1.0) -> float:
    """lr x 0.1 at floor(I / 2.667), floor(I / 1.6), floor(I / 1.142); `iteration` counts from 0."""
    passed = sum(iteration >= math.floor(iterations / part) for part in (2.667, 1.6, 1.142))
    return rate * 0.1**passed


@dataclass
class Adam:
    """One tensor under Adam, betas 0.9 and 0.999, eps 1e-8. sign: its gradient is replaced by its sign first."""

    value: Tensor
    sign: bool = False
    count: int = 0
    first: Tensor = field(init=False)
    second: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.first = torch.zeros_like(self.value)
        self.second = torch.zeros_like(self.value)

    def step(self, gradient: Tensor, rate: float) -> None:
        gradient = torch.sign(gradient) if self.sign else gradient
        self.count += 1
        self.first = 0.9 * self.first + 0.1 * gradient
        self.second = 0.999 * self.second + 0.001 * gradient * gradient
        first = self.first / (1 - 0.9**self.count)
        second = self.second / (1 - 0.999**self.count)
        self.value = self.value - rate * first / (torch.sqrt(second) + 1e-8)


@dataclass
class Trail:
    """The trace of an inversion: x and l after each iteration, and D before each."""

    x: list[Tensor] = field(default_factory=list)
    l: list[Tensor] = field(default_factory=list)  # noqa: E741
    disparity: list[float] = field(default_factory=list)


def invert(
    network: nn.Module,
    w_d: Tensor,
    u_d: Tensor,
    x: Tensor,
    l: Tensor,  # noqa: E741
    local: Local,
    *,
    rates: Sequence[float],
    sign: bool = True,
    loss: Loss = soft,
    distance: str = "l1",
    bound: float = 2.0,
) -> Trail:
    """As many iterations as there are rates: Adam on x (of the sign of its gradient) and on l, x clamped after each."""
    images, labels = Adam(x.clone(), sign=sign), Adam(l.clone())
    trail = Trail()
    for rate in rates:
        x_now = images.value.clone().requires_grad_(True)
        l_now = labels.value.clone().requires_grad_(True)
        value = disparity(network, w_d, x_now, l_now, u_d, local, loss, distance)
        by_x, by_l = torch.autograd.grad(value, [x_now, l_now])
        trail.disparity.append(float(value.detach()))
        images.step(by_x, rate)
        labels.step(by_l, rate)
        images.value = torch.clamp(images.value, -bound, bound)
        trail.x.append(images.value.clone())
        trail.l.append(labels.value.clone())
    return trail


@dataclass
class AdaptiveFirstOrder:
    """In gradients of one step, h = u / (eta_l k), and u~ = eta_l k h~:

        MS <- 0.95 MS + 0.05 h*h;   h~ = h + lambda_0 / sqrt(MS + 1e-7) h*h*(w_t - w_b)

    in this order, as in the paper that 2.21 quotes; one MS for the whole server.
    """

    lambda_0: float = 2.0
    mean_square: list[float] | None = None

    def update(self, u_d: Tensor, w_t_d: Tensor, w_b_d: Tensor, *, rate: float, steps: int) -> Tensor:
        h_d = [float(u) / (rate * steps) for u in u_d]
        old = self.mean_square or [0.0] * len(h_d)
        self.mean_square = [0.95 * ms + 0.05 * h * h for ms, h in zip(old, h_d, strict=True)]
        made = [
            rate * steps * (h + self.lambda_0 / math.sqrt(ms + 1e-7) * h * h * (float(w) - float(b)))
            for h, ms, w, b in zip(h_d, self.mean_square, w_t_d, w_b_d, strict=True)
        ]
        return torch.tensor(made, dtype=torch.float64)
