"""Private training of softmax regression and small networks, for many rates and seeds at once.

The gradient of one example is an outer product, so that it is clipped without being formed. All rates of a
seed share its batches and its noise. `make_private` does the same for any model, one run at a time.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from accuracy_tasks import Task
from torch import Tensor

import dpmech as dm
from dpmech.optim import denoise_matrices, orthogonalize
from dpmech.samplers import sampler_for

CLIP = 1.0
HIDDEN = 32


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is trained, and how long.

    Args:
        task: of TASKS.
        model: "softmax", or "network" with one hidden layer.
        bins: steps of an epoch; a batch is expected to have train / bins examples.
        epochs: how often every example takes part, on average at least.
        eps: at DELTA.
    """

    task: str
    model: str
    bins: int
    epochs: int
    eps: float

    @property
    def steps(self) -> int:
        """Of the run."""
        return self.bins * self.epochs


@dataclasses.dataclass(frozen=True, eq=False)
class Noise:
    """Noise of sigma C^-1 Z times the clip norm, and the batches that this sigma is certified for."""

    strategy: dm.Strategy
    participation: dm.Participation
    sigma: float
    rmse: float


def noise_rows(
    strategy: dm.Strategy, shape: Sequence[int], seed: int
) -> Iterator[Tensor]:
    """Rows of C^-1 Z one by one, each of this shape, for the identity or a BLT."""
    generator = torch.Generator().manual_seed(seed)
    buffers = (
        list(zip(strategy.decays, strategy.scales, strict=True))
        if isinstance(strategy, dm.BLT)
        else []
    )
    states = [torch.zeros(*shape) for _ in buffers]
    for _ in range(strategy.n):
        row = torch.randn(*shape, generator=generator)
        for state, (_, scale) in zip(states, buffers, strict=True):
            row.sub_(state, alpha=float(scale))
        for state, (decay, _) in zip(states, buffers, strict=True):
            state.mul_(float(decay)).add_(row)
        yield row


def softmax_gradient(
    weights: Sequence[Tensor], x: Tensor, y: Tensor, present: Tensor
) -> list[Tensor]:
    """Sums of clipped gradients of softmax regression, for all seeds and rates at once.

    Args:
        weights: one of shape (seeds, d, rates, classes).
        x: (seeds, batch, d).
        y: one-hot, (seeds, batch, classes).
        present: (seeds, batch), 0 for what fills up a batch.
    """
    (w,) = weights
    seeds, d, rates, classes = w.shape
    errors = torch.bmm(x, w.view(seeds, d, -1)).view(seeds, -1, rates, classes)
    errors = torch.softmax(errors, -1).sub_(y[:, :, None])
    # The gradient of an example is an outer product: its length is a product of lengths.
    lengths = errors.norm(dim=-1) * x.norm(dim=-1)[..., None]
    factors = (CLIP / lengths.clamp_(min=CLIP)).mul_(present[..., None])
    errors.mul_(factors[..., None])
    return [torch.bmm(x.mT, errors.view(seeds, -1, rates * classes)).view_as(w)]


def network_gradient(
    weights: Sequence[Tensor], x: Tensor, y: Tensor, present: Tensor
) -> list[Tensor]:
    """The same for one hidden layer.

    `weights` are (seeds, d, rates, HIDDEN) and (seeds, HIDDEN + 1, rates, classes).
    """
    first, second = weights
    hidden = _hidden(first, x)
    errors = torch.softmax(_through(hidden, second), -1).sub_(y[:, :, None])
    back = torch.einsum("sbrk,shrk->sbrh", errors, second)[..., :-1]
    back = back * (hidden[..., :-1] > 0.0)
    lengths = (
        (errors.square().sum(-1) * hidden.square().sum(-1))
        .add_(back.square().sum(-1) * x.square().sum(-1)[..., None])
        .sqrt_()
    )
    factors = (CLIP / lengths.clamp_(min=CLIP)).mul_(present[..., None])
    errors.mul_(factors[..., None])
    back = back * factors[..., None]
    flat = back.reshape(*x.shape[:2], -1)
    return [
        torch.bmm(x.mT, flat).view_as(first),
        torch.einsum("sbrh,sbrk->shrk", hidden, errors),
    ]


def _hidden(first: Tensor, x: Tensor) -> Tensor:
    seeds, d, rates, width = first.shape
    hidden = torch.bmm(x, first.reshape(seeds, d, -1)).relu_()
    hidden = hidden.view(seeds, -1, rates, width)
    return torch.cat([hidden, torch.ones(*hidden.shape[:-1], 1)], -1)


def _through(hidden: Tensor, second: Tensor) -> Tensor:
    return torch.einsum("sbrh,shrk->sbrk", hidden, second)


def starts(plan: Plan, task: Task, rates: int, seeds: int) -> list[Tensor]:
    """Weights at the start: the same for all rates."""
    d = task.features.shape[1]
    if plan.model == "softmax":
        return [torch.zeros(seeds, d, rates, task.classes)]
    parts = []
    for inner, width in ((d, HIDDEN), (HIDDEN + 1, task.classes)):
        ones = [
            torch.randn(
                inner, 1, width, generator=torch.Generator().manual_seed(seed)
            )
            for seed in range(seeds)
        ]
        parts.append(
            (torch.stack(ones) / math.sqrt(inner)).repeat(1, 1, rates, 1)
        )
    return parts


GRADIENTS = {"softmax": softmax_gradient, "network": network_gradient}


def accuracies(
    plan: Plan, weights: Sequence[Tensor], task: Task, places: Tensor
) -> np.ndarray:
    """(seeds, rates) on these places, of shape (seeds, examples)."""
    found = []
    for seed, mine in enumerate(places):
        right = 0.0
        for part in mine.split(4000):
            x = task.features[part][None]
            own = [one[seed : seed + 1] for one in weights]
            if plan.model == "softmax":
                (w,) = own
                scores = torch.bmm(x, w.reshape(1, x.shape[-1], -1))
                scores = scores.view(1, -1, *w.shape[2:])
            else:
                scores = _through(_hidden(own[0], x), own[1])
            hits = scores[0].argmax(-1) == task.labels[part][:, None]
            right = right + hits.double().sum(0)
        found.append((right / len(mine)).numpy())
    return np.array(found)


@dataclasses.dataclass(frozen=True)
class Rule:
    """An update rule.

    Args:
        name: as in the table.
        first: smallest rate of the first grid.
        momentum: of SGD and Muon.
        decay: whether the rate falls linearly to 0.
        adam: AdamBC with these decays of its moments, in place of SGD.
        subtract: False for Adam as it is: nothing is subtracted from its second moment.
        muon: Muon in place of SGD: steps along the orthogonalized momentum.
        denoised: whether singular values of gradients are shrunk first.
    """

    name: str
    first: float
    momentum: float = 0.0
    decay: bool = False
    adam: tuple[float, float] | None = None
    subtract: bool = True
    muon: bool = False
    denoised: bool = False

    @property
    def normalizes(self) -> bool:
        """Whether the length of a step does not depend on that of the gradient."""
        return self.adam is not None or self.muon


def of_matrices(function: Callable[[Tensor], Tensor], weight: Tensor) -> Tensor:
    """A function of matrices, of one of `weights`: rates are between its rows and columns."""
    return function(weight.transpose(1, 2)).transpose(1, 2)


class Updates:
    """Steps of one rule for all seeds and rates at once; `variances` are those of the noise of each step."""

    def __init__(
        self,
        rule: Rule,
        weights: list[Tensor],
        rates: Sequence[float],
        variances: np.ndarray,
    ) -> None:
        self._rule, self._weights, self._variances = rule, weights, variances
        self._rates = torch.tensor(rates, dtype=torch.float32)[:, None]
        self._first = [torch.zeros_like(one) for one in weights]
        self._second = [torch.zeros_like(one) for one in weights if rule.adam]
        self._phi = 0.0

    def step(self, t: int, gradients: Sequence[Tensor]) -> None:
        """Step t, counted from 0."""
        rule, rates = self._rule, self._rates
        if rule.decay:
            rates = rates * (1.0 - t / len(self._variances))
        if rule.denoised:
            shrunk = functools.partial(
                denoise_matrices, stddev=math.sqrt(self._variances[t])
            )
            gradients = [of_matrices(shrunk, one) for one in gradients]
        if rule.adam is not None:
            self._adam(t, gradients, *rule.adam)
            return
        for weight, gradient, first in zip(
            self._weights, gradients, self._first, strict=True
        ):
            move = gradient
            if rule.momentum:
                move = first.mul_(rule.momentum).add_(gradient)
            if rule.muon:
                move = of_matrices(orthogonalize, move)
            weight.addcmul_(move, rates, value=-1.0)

    def _adam(
        self, t: int, gradients: Sequence[Tensor], beta1: float, beta2: float
    ) -> None:
        phi = float(self._variances[t]) if self._rule.subtract else 0.0
        self._phi = beta2 * self._phi + (1.0 - beta2) * phi
        debias1, debias2 = 1.0 - beta1 ** (t + 1), 1.0 - beta2 ** (t + 1)
        average = self._phi / debias2
        for weight, gradient, first, second in zip(
            self._weights, gradients, self._first, self._second, strict=True
        ):
            first.mul_(beta1).add_(gradient, alpha=1.0 - beta1)
            second.mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
            # Corrected for the noise, with a floor at its variance: less than that is noise itself.
            root = (second / debias2 - average).clamp_(min=max(average, 1e-8))
            weight.addcmul_(
                first / root.sqrt_(), self._rates / debias1, value=-1.0
            )


def trained(
    plan: Plan,
    task: Task,
    noise: Noise,
    rule: Rule,
    rates: Sequence[float],
    *,
    seeds: int,
    noisy: bool = True,
    watch: Callable[..., None] | None = None,
) -> dict[str, list[Tensor]]:
    """The last weights, and their average over the second half of the steps.

    `watch` is called after every step with the number of steps taken, the weights, and the mean gradients
    before and after the noise.
    """
    splits = [task.split(seed) for seed in range(seeds)]
    samplers = [
        iter(
            sampler_for(noise.participation, task.train, n=plan.steps, rng=seed)
        )
        for seed in range(seeds)
    ]
    weights = starts(plan, task, len(rates), seeds)
    rows = noise_rows(
        noise.strategy,
        (seeds, sum(one[0, :, 0].numel() for one in weights)),
        7,
    )
    expected = task.train / plan.bins
    scale = noise.sigma * CLIP / expected if noisy else 0.0
    variances = (scale * noise.strategy.noising_row_norms()) ** 2
    updates = Updates(rule, weights, rates, variances)
    targets = torch.eye(task.classes)
    average = [torch.zeros_like(one) for one in weights]
    start = plan.steps // 2
    for t in range(plan.steps):
        batches = [
            split[0][torch.from_numpy(np.asarray(next(one)).astype(np.int64))]
            for split, one in zip(splits, samplers, strict=True)
        ]
        size = max(1, *(len(one) for one in batches))
        places = torch.zeros(seeds, size, dtype=torch.int64)
        present = torch.zeros(seeds, size)
        for seed, batch in enumerate(batches):
            places[seed, : len(batch)] = batch
            present[seed, : len(batch)] = 1.0
        gradients = GRADIENTS[plan.model](
            weights,
            task.features[places],
            targets[task.labels[places]],
            present,
        )
        row = next(rows) if noisy else None
        clean = []
        for gradient in gradients:
            gradient.mul_(1.0 / expected)
            if watch is not None:
                clean.append(gradient.clone())
            if row is not None:
                seeds_, d, _, width = gradient.shape
                own, row = row[:, : d * width], row[:, d * width :]
                gradient.add_(own.view(seeds_, d, 1, width), alpha=scale)
        updates.step(t, gradients)
        if watch is not None:
            watch(t + 1, weights, clean, gradients)
        if t >= start:
            for total, weight in zip(average, weights, strict=True):
                total.add_(weight)
    for total in average:
        total.div_(plan.steps - start)
    return {"last": weights, "average": average}


def tested(
    plan: Plan, task: Task, weights: Sequence[Tensor]
) -> tuple[np.ndarray, np.ndarray]:
    """Accuracies (seeds, rates) on the validation and the test part."""
    splits = [task.split(seed) for seed in range(len(weights[0]))]
    validation, test = (
        torch.stack([split[part] for split in splits]) for part in (1, 2)
    )
    return (
        accuracies(plan, weights, task, validation),
        accuracies(plan, weights, task, test),
    )
