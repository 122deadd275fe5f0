"""CanaryWatch: records the values that a run releases along the directions of its canaries."""

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from dpmech.audits import GaussianAudit, canary_scores, gaussian_audit, one_run_epsilon
from dpmech.certificates import AdaptiveClip
from dpmech.exceptions import InvalidParameterError, NumericalError, UnsupportedCombinationError
from dpmech.numerics import Bounds, FloatArray
from dpmech.optim.canaries.data import CanaryData
from dpmech.optim.clipping import clip_and_sum
from dpmech.optim.private_optimizer import PrivateOptimizer
from dpmech.optim.processes import is_sharded
from dpmech.optim.state import HOOKS, marks_of_globals, spared


class CanaryWatch:
    """Records the release of every step of a PrivateOptimizer along the direction of each canary.

    The clipped gradient of a canary is d_t in its column of the first weight, and almost zero elsewhere.
    After every step, the columns of the canaries are set to 0 (real examples do not use them). Canaries
    therefore differ only in their column and share a known d_t, which follows from the loss of one canary at
    public weights. The release is read along d_t if noise is independent between steps. Otherwise, it is read
    along d_0, because noise along a fixed direction has the stated correlation.

    Setting columns and reading private gradients are post-processing, so the guarantee of the run does not
    change.

    Args:
        optimizer: the optimizer, before its first step.
        data: the training data.
        model: the trained model. A linear layer reads features of shape (..., width), and the model processes
            examples independently. Its forward and backward hooks are not run.
        loss: `loss(model, features, target)` of one example, without a batch dimension, as in training.
        weight: weight of the linear layer that reads the features, shape (outputs, width).

    Raises:
        InvalidParameterError: if an argument is invalid.
        NumericalError: raised by a step if the gradient of a canary is not finite.

    Examples:
        >>> import torch, dpmech as dm
        >>> from dpmech.optim import CanaryData, CanaryWatch, PrivateOptimizer, clipped_gradients
        >>> cal = dm.calibrate_sigma(dm.Identity(10), 8.0, 1e-5, participation=dm.Poisson(0.5))
        >>> real = torch.utils.data.TensorDataset(torch.ones(50, 2), torch.zeros(50, dtype=torch.long))
        >>> data = CanaryData(real, 100, target=0, rng=1)
        >>> batches = dm.samplers.sampler_for(cal, len(data), rng=1)
        >>> model = torch.nn.Linear(data.width, 2)
        >>> loss = lambda f, x, y: torch.nn.functional.cross_entropy(f(x), y)
        >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> opt = PrivateOptimizer(sgd, cal, expected_batch_size=75, generator=1)
        >>> watch = CanaryWatch(opt, data, model, loss, model.weight)
        >>> for batch in batches:
        ...     opt.accumulate(clipped_gradients(model, loss, data.batch(batch), 1.0))
        ...     opt.step()
        >>> watch.observations.shape, watch.epsilon().lower < 8.0
        ((100, 10), True)
    """

    def __init__(
        self,
        optimizer: PrivateOptimizer,
        data: CanaryData,
        model: nn.Module,
        loss: Callable[..., Tensor],
        weight: Tensor,
    ) -> None:
        if not isinstance(optimizer, PrivateOptimizer) or optimizer.record.steps:
            raise InvalidParameterError("optimizer", optimizer, "a PrivateOptimizer before its first step")
        if not isinstance(data, CanaryData):
            raise InvalidParameterError("data", data, "a CanaryData")
        params = [param for group in optimizer.param_groups for param in group["params"]]
        self._trained = [param for param in params if param.requires_grad]
        places = [place for place, param in enumerate(self._trained) if param is weight]
        if not places or weight.ndim != 2 or weight.shape[1] != data.width or is_sharded(weight):
            raise InvalidParameterError(
                "weight",
                tuple(getattr(weight, "shape", ())),
                f"a parameter that the optimizer trains, whole, of shape (outputs, {data.width})",
            )
        self._optimizer, self._data, self._model, self._loss = optimizer, data, model, loss
        self._weight, self._place = weight, places[0]
        self._columns = slice(data.real_width, data.width)
        # Noise of this weight over sigma: the clip norm, or its equivalent under PerMatrixClipping.
        if isinstance(optimizer.record.clip_norm, AdaptiveClip):
            raise UnsupportedCombinationError(
                "a clip norm that changes: observations of several steps would have different units",
                supported="a fixed clip_norm in a run that is audited by canaries",
            )
        norms = optimizer.clipping.noise_norms(self._trained, optimizer.claim.sigma)
        self._unit = norms[self._place]
        self._turns = optimizer.claim.strategy.bands == 1
        self._direction = torch.zeros(weight.shape[0], dtype=torch.float64, device=weight.device)
        self._observations: list[FloatArray] = []
        self._strengths: list[float] = []
        self._unknown: list[bool] = []  # whether a canary's gradient in training is not this one
        self._aim()
        optimizer.register_step_post_hook(self._observe)

    @property
    def observations(self) -> FloatArray:
        """Releases along the direction of every canary, in units of the clip norm, shape (count, t)."""
        return np.array(self._observations).reshape(-1, self._data.count).T

    @property
    def strengths(self) -> FloatArray:
        """The observed part of the gradient of a canary, over the clip norm, at every step, shape (t,).

        It is close to 1 under flat clipping if the scale is large, if not all units are dead, and if the
        gradient keeps the direction of the first step. The audit is weaker if it is smaller.
        """
        return np.array(self._strengths[: len(self._observations)])

    def scores(self, joins: npt.NDArray[np.bool_] | None = None) -> FloatArray:
        """Log-likelihood ratio of every canary for the claimed mechanism, shape (count,).

        Args:
            joins: `data.joins(sampler)` if the participation is not random; otherwise None.

        Raises:
            InvalidParameterError: if `joins` is invalid, or before the first step.
        """
        claim = self._optimizer.claim
        if claim.participation.random and joins is not None:
            raise InvalidParameterError("joins", joins, f"None under {claim.participation!r}")
        return canary_scores(
            self.observations,
            claim.strategy,
            claim.sigma,
            claim.participation if joins is None else joins,
            strengths=self.strengths,
        )

    def audit(
        self,
        joins: npt.NDArray[np.bool_] | None = None,
        *,
        confidence: float = 0.95,
        rng: np.random.Generator | int | None = None,
    ) -> GaussianAudit:
        """Return an upper bound on the noise of this run and a lower bound on its eps, by `gaussian_audit`.

        The gradient of a canary in training may differ from that in evaluation mode, or depend on random
        numbers (dropout). Its contribution is then not known, but it is at most 1, the clip norm. In this
        case, 1 is assumed: the bound still holds, and is looser.

        Args:
            joins: `data.joins(sampler)`. Under random sampling, None, or `data.joins(sampler, secret=True)`
                for a tighter bound.
            confidence: as for `gaussian_audit`.
            rng: as for `gaussian_audit`.

        Raises:
            InvalidParameterError: if an argument is invalid, or before the first step.
            UnsupportedCombinationError: as for `gaussian_audit`; also if C has a negative entry and the
                gradients of canaries are not known.
        """
        claim, strengths = self._optimizer.claim, self.strengths
        unknown = np.array(self._unknown[: strengths.size], dtype=np.bool_)
        if unknown.any():
            if not claim.strategy.nonnegative:  # a larger contribution need not raise the statistic
                raise UnsupportedCombinationError(
                    "canaries whose gradients are not known (dropout, another model in evaluation "
                    f"mode) with {claim.strategy!r}, which has negative entries",
                    supported="strategies without negative entries; a model without dropout; epsilon()",
                )
            strengths = np.where(unknown, 1.0, strengths)
        return gaussian_audit(
            self.observations,
            self._data.included,
            claim,
            joins,
            strengths=strengths,
            confidence=confidence,
            rng=rng,
        )

    def epsilon(
        self,
        delta: float | None = None,
        *,
        joins: npt.NDArray[np.bool_] | None = None,
        guesses: Sequence[tuple[int, int]] | None = None,
        confidence: float = 0.95,
    ) -> Bounds:
        """Return a lower bound on the eps of this run, by `one_run_epsilon` of its scores.

        Args:
            delta: None for the delta of the claim.
            joins: as for `scores`.
            guesses: as for `one_run_epsilon`.
            confidence: level of the bound.

        Raises:
            InvalidParameterError: on a bad argument, or before the first step.
        """
        return one_run_epsilon(
            self.scores(joins),
            self._data.included,
            self._optimizer.claim.budget.delta if delta is None else delta,
            guesses=guesses,
            confidence=confidence,
        )

    def _observe(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """After a step: read the canaries' columns of the private gradient, and prepare the next step."""
        steps = self._optimizer.record.steps
        if steps == len(self._observations):
            return  # a call in the middle of a batch, or a second notification of the same step
        gradient = self._weight.grad
        if gradient is None or steps > len(self._observations) + 1:
            raise UnsupportedCombinationError(
                f"after step {steps} only {len(self._observations)} were watched",
                supported="a run that is watched from its first step, in one process of the system",
            )
        factor = self._optimizer.expected_batch_size / self._unit
        released = self._direction @ gradient[:, self._columns].double() * factor
        self._observations.append(released.cpu().numpy())
        self._aim()

    def _aim(self) -> None:
        """Clear the canaries' columns, and compute the contribution of a canary to its column."""
        weight = self._weight.detach()
        weight[:, self._columns] = 0.0
        self._optimizer.note_weights()
        with _unhooked(self._model, training=False):
            column = self._clipped_column()
        with _unhooked(self._model), spared():
            states = marks_of_globals()
            same = torch.equal(self._clipped_column(), column)
            drew = states != marks_of_globals()
        self._unknown.append(drew or not same)
        length = float(column.norm())
        if not self._direction.any() or (self._turns and length > 0.0):
            ahead = column if length > 0.0 else torch.ones_like(column)
            self._direction = ahead / ahead.norm()
        self._strengths.append(float(self._direction @ column) / self._unit)

    def _clipped_column(self) -> Tensor:
        """The column of a canary in its clipped gradient, in float64."""
        features, target = (part.to(self._weight.device) for part in self._data.canary(0))
        with torch.enable_grad():
            value = self._loss(self._model, features.to(self._weight.dtype), target)
            gradients = torch.autograd.grad(value, self._trained, allow_unused=True)
        samples = [None if part is None else part[None] for part in gradients]
        sums, _, dropped, *_ = clip_and_sum(samples, self._optimizer.clipping.blocks(self._trained))
        clipped = sums[self._place]
        if clipped is None or bool(dropped):
            raise NumericalError("the gradient of a canary's loss is not finite, or misses the first weight")
        return clipped[:, self._data.real_width].double()


@contextlib.contextmanager
def _unhooked(model: nn.Module, *, training: bool | None = None) -> Iterator[None]:
    """A context without hooks that would record or count an example; buffers stay as they are.

    `training` sets the mode of all parts; None leaves those of the run.
    """
    saved = [(part, part.training, *(getattr(part, name) for name in HOOKS)) for part in model.modules()]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    for part, *_ in saved:
        part.training = part.training if training is None else training
        for name in HOOKS:
            setattr(part, name, OrderedDict())
    try:
        yield
    finally:
        for part, own, *hooks in saved:
            part.training = own
            for name, one in zip(HOOKS, hooks, strict=True):
                setattr(part, name, one)
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
