r"""Several Gaussian releases from one sampled batch, joined to one mechanism; block-wise clipping.

Block W of a batch, clipped to C_W and given noise sigma_W C_W, moves the joint output by at most 1 / sigma_W
standard deviations. All blocks see the same members of the batch, so together they are one Gaussian release
with sigma = (sum_W sigma_W^-2)^(-1/2), for any C_W. Sampling amplifies this joint release. Amplifying every
block separately and composing afterwards would treat one sampled batch as several.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dpmech.calibration import plain_scale
from dpmech.engines import Accountant, Method, check_method
from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.guards import (
    check_delta,
    check_eps,
    check_identifier,
    check_integer,
    check_name,
    check_sigma,
    positive_numbers,
)
from dpmech.mechanism import (
    UNSTATED,
    Adjacency,
    Mechanism,
    Participation,
    Strategy,
    Unstated,
    check_participation,
    check_strategy,
    mechanism_of,
)
from dpmech.numerics import Bounds, typed
from dpmech.schemes import accountant_for

_ULP = 2.0**-52
_TOLERANCE = 4e-4


@dataclasses.dataclass(frozen=True)
class JointRelease:
    """Several Gaussian releases from the same batch, combined into one release.

    Args:
        sigmas: noise of each release divided by its own clip norm, all > 0.

    Raises:
        InvalidParameterError: if there are none, or one is not > 0.

    References:
        muon.joint_sigma (implied by muon Theorem 2.1).

    Example:
        >>> import dpmech as dm
        >>> f"{dm.ledgers.joint_release([1.0, 1.0]).sigma:.4f}"
        '0.7071'
    """

    sigmas: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigmas", positive_numbers("sigmas", self.sigmas))

    @property
    def sigma(self) -> float:
        """(sum sigma^-2)^(-1/2), rounded down; exact for a single release.

        Use it as the sigma of a single release: with a strategy C, the joint release is as private as C G +
        sigma Z at clip norm 1.
        """
        least = min(self.sigmas)
        if len(self.sigmas) == 1:
            return least
        # Every term has at most 3 roundings, the sum and the root one each.
        total = math.fsum((least / sigma) ** 2 for sigma in self.sigmas)
        return least / math.sqrt(total) * (1.0 - 4.0 * _ULP)

    def __float__(self) -> float:
        return self.sigma


def joint_release(sigmas: Sequence[float]) -> JointRelease:
    """Combine Gaussian releases that are computed from the SAME sampled batch.

    Args:
        sigmas: noise of each release divided by its own clip norm, shape (k,), all > 0.

    Returns:
        A JointRelease. Pass its `sigma` to `epsilon` or `delta` for all releases together. Exact, up to
        rounding down.

    Raises:
        InvalidParameterError: if there are none, or one is not > 0.

    References:
        muon.joint_sigma.

    Examples:
        >>> import dpmech as dm
        >>> joint = dm.ledgers.joint_release([1.0, 1.0])
        >>> f"{joint.sigma:.6f}"
        '0.707107'
        >>> f"{dm.epsilon(dm.Identity(50), joint.sigma, 1e-6, participation=dm.Poisson(0.01)).upper:.3f}"
        '2.659'
    """
    return JointRelease(tuple(positive_numbers("sigmas", sigmas)))


class SharedBatch:
    """The sequence of batches of one training run, and the mechanisms that read them.

    Register every Gaussian release that is computed from these batches, then query the privacy of all of them
    together. The first query closes the batch: a mechanism registered afterwards would not be covered by the
    answer. A `Ledger` accepts a batch once.

    Args:
        name: identifies the batches in a ledger.
        strategy: C, the same for all mechanisms on the batch; or a Mechanism, which includes the next two.
        participation: how the batches are sampled.
        adjacency: the neighbouring relation.

    Raises:
        InvalidParameterError: if an argument is invalid.

    References:
        muon.joint_sigma, muon Theorem 2.1.

    Examples:
        >>> import dpmech as dm
        >>> batch = dm.ledgers.SharedBatch("run 1", dm.Identity(50), dm.Poisson(0.01))
        >>> batch.register("gradients", 1.0)
        >>> batch.register("second moments", 1.0)
        >>> round(batch.epsilon(1e-6).upper, 3)
        2.659
        >>> batch.register("loss", 5.0)
        Traceback (most recent call last):
        ...
        dpmech.exceptions.UnsupportedCombinationError: batch 'run 1' is closed: ...
    """

    def __init__(
        self,
        name: str,
        strategy: Strategy | Mechanism,
        participation: Participation | None = None,
        *,
        adjacency: Adjacency | Unstated = UNSTATED,
    ) -> None:
        self.name = check_identifier("name", name)
        if not isinstance(strategy, Mechanism):
            check_strategy(strategy)
            check_participation(participation)  # no default: it must be stated how batches are sampled
        self.mechanism = mechanism_of(strategy, participation, adjacency)
        self._blocks: dict[str, float] = {}
        self._closed = False

    @property
    def strategy(self) -> Strategy:
        """The strategy C."""
        return self.mechanism.strategy

    @property
    def participation(self) -> Participation:
        """How the batches are sampled."""
        return self.mechanism.participation

    @property
    def adjacency(self) -> Adjacency:
        """The neighbouring relation."""
        return self.mechanism.adjacency

    @property
    def blocks(self) -> dict[str, float]:
        """Sigma of every registered mechanism, by name."""
        return dict(self._blocks)

    @property
    def closed(self) -> bool:
        """Whether the batch is closed, so that nothing more may be registered."""
        return self._closed

    @property
    def sigma(self) -> float:
        """The joint sigma of all mechanisms registered so far."""
        return self._joint().sigma

    def register(self, name: str, sigma: float) -> None:
        """Add a Gaussian release from these batches.

        Args:
            name: name of the mechanism, new on this batch.
            sigma: noise divided by its own clip norm, > 0.

        Raises:
            UnsupportedCombinationError: if the batch is closed.
            InvalidParameterError: if the name is taken or sigma is invalid.
        """
        if self._closed:
            raise UnsupportedCombinationError(
                f"batch {self.name!r} is closed: its privacy has been accounted without {name!r}",
                supported="registering every mechanism of a batch before its privacy is asked for",
            )
        if check_name("name", name) in self._blocks:
            raise InvalidParameterError("name", name, f"new on batch {self.name!r}")
        self._blocks[name] = check_sigma(sigma)

    def close(self) -> JointRelease:
        """Close the batch, and return its mechanisms as one joint release."""
        joint = self._joint()
        self._closed = True
        return joint

    def epsilon(
        self, delta: float, *, method: Method | None = None, rng: np.random.Generator | None = None
    ) -> Bounds:
        """Bounds on eps at `delta` of all mechanisms together; closes the batch.

        Args:
            delta: in (0, 1).
            method: None for the best valid accountant, or a method object.
            rng: for randomised methods only; None uses entropy from the operating system.

        Raises:
            InvalidParameterError: if an argument is invalid or the batch is empty.
            UnsupportedCombinationError: if no theorem covers the combination.
            NumericalError: if a tolerance is missed.
        """
        accountant, checked_delta = self._accountant(method, rng), check_delta(delta)
        sigma = self.close().sigma
        with plain_scale(self.mechanism, sigma, f"delta {typed(checked_delta)}"):
            return accountant.epsilon(sigma, checked_delta, tolerance=_TOLERANCE)

    def delta(
        self, eps: float, *, method: Method | None = None, rng: np.random.Generator | None = None
    ) -> Bounds:
        """Bounds on delta at `eps` >= 0 of all mechanisms together; otherwise like `epsilon`."""
        accountant, checked_eps = self._accountant(method, rng), check_eps(eps, zero_allowed=True)
        sigma = self.close().sigma
        with plain_scale(self.mechanism, sigma, f"eps {typed(checked_eps)}"):
            return accountant.delta(sigma, checked_eps, tolerance=_TOLERANCE)

    def _joint(self) -> JointRelease:
        if not self._blocks:
            raise InvalidParameterError("batch", self.name, "a batch with at least one registered mechanism")
        return JointRelease(tuple(self._blocks.values()))

    def _accountant(self, method: Method | None, rng: np.random.Generator | None) -> Accountant:
        if rng is not None and not isinstance(rng, np.random.Generator):
            raise InvalidParameterError("rng", rng, "None or a numpy.random.Generator")
        return accountant_for(self.mechanism, check_method(method), rng)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return (
            f"SharedBatch({self.name!r}, {self.strategy!r}, {self.participation!r}, {self.adjacency.name}, "
            f"{len(self._blocks)} mechanisms, {state})"
        )


@dataclasses.dataclass(frozen=True)
class BlockClipping:
    """Clipping and noise for each block of the parameters (such as each matrix), from the same batch.

    Block W of the summed gradient is clipped to C_W per example and gets Gaussian noise of standard deviation
    sigma_W C_W in every coordinate (correlated over steps, depending on the strategy).

    Args:
        clip_norms: C_W of every block, > 0.
        sigmas: sigma_W of every block, > 0; a single number applies to all blocks.

    Raises:
        InvalidParameterError: if a value is not > 0, or the lengths differ.

    References:
        muon.joint_sigma, muon.replace_one.

    Examples:
        >>> import dpmech as dm
        >>> blocks = dm.ledgers.BlockClipping([0.1] * 49, 2.3395)
        >>> round(blocks.sigma, 6), round(blocks.replace_one_sigma, 6)
        (0.334214, 0.167107)
    """

    clip_norms: tuple[float, ...]
    sigmas: tuple[float, ...]

    def __post_init__(self) -> None:
        clip_norms = positive_numbers("clip_norms", self.clip_norms)
        given: object = self.sigmas
        if isinstance(given, int | float | np.integer | np.floating):
            given = [check_sigma(given)] * len(clip_norms)
        sigmas = positive_numbers("sigmas", given)
        if len(sigmas) != len(clip_norms):
            raise InvalidParameterError(
                "sigmas", given, f"one number, or one for each of {len(clip_norms)} blocks"
            )
        object.__setattr__(self, "clip_norms", clip_norms)
        object.__setattr__(self, "sigmas", sigmas)

    @classmethod
    def from_joint(
        cls,
        clip_norms: Sequence[float],
        sigma: float,
        *,
        dimensions: Sequence[int] | npt.NDArray[np.integer] | None = None,
    ) -> "BlockClipping":
        """Divide a joint sigma, such as that of a calibration, among blocks.

        Args:
            clip_norms: C_W of every block, > 0.
            sigma: the smallest allowed joint sigma of the blocks.
            dimensions: None sets the same sigma_W = sigma sqrt(k) for every block. Block sizes d_W minimise
                the total noise variance sum d_W (sigma_W C_W)^2, by sigma_W^2 proportional to 1 / (C_W
                sqrt(d_W)).

        Returns:
            Blocks whose joint sigma is at least `sigma`, by a few units of rounding.

        Raises:
            InvalidParameterError: if an argument is invalid.
        """
        norms = np.array(positive_numbers("clip_norms", clip_norms))
        target = check_sigma(sigma)
        shares = np.ones_like(norms)
        if dimensions is not None:
            if not isinstance(dimensions, Sequence | np.ndarray) or len(dimensions) != norms.size:
                raise InvalidParameterError(
                    "dimensions", dimensions, f"one integer for each of {norms.size} blocks"
                )
            sizes = np.array(
                [check_integer("dimensions", size, minimum=1) for size in dimensions], dtype=np.float64
            )
            shares = 1.0 / np.sqrt(norms / norms.max() * np.sqrt(sizes / sizes.max()))
        scale = target / JointRelease(tuple(shares.tolist())).sigma
        return cls(tuple(norms.tolist()), tuple((shares * scale * (1.0 + 16.0 * _ULP)).tolist()))

    @property
    def sigma(self) -> float:
        """The joint sigma, for any clip norms: the sigma of calibrations and accountants."""
        return JointRelease(self.sigmas).sigma

    @property
    def replace_one_sigma(self) -> float:
        """Half the joint sigma: the noise relative to the sensitivity 2 C_W of replacing one example.

        Exact without sampling. There, `sensitivity` already includes the factor of 2 under REPLACE_ONE, so do
        not pass this number together with REPLACE_ONE. Under sampling, halving is not proven; use `sigma` and
        REPLACE_ONE instead.
        """
        return 0.5 * self.sigma

    @property
    def noise_stddevs(self) -> tuple[float, ...]:
        """sigma_W C_W of every block: the standard deviation of Z scaled for the summed gradient."""
        return tuple(sigma * norm for sigma, norm in zip(self.sigmas, self.clip_norms, strict=True))

    @property
    def effective_clip_norms(self) -> tuple[float, ...]:
        """sigma_W C_W / sigma: the clip norm at which the joint sigma yields the noise of a block.

        `calibration.noise_variance(step, effective_clip_norms[w], batch_size)` is Phi_t of block w.
        """
        sigma = self.sigma
        return tuple(stddev / sigma for stddev in self.noise_stddevs)

    @property
    def joint_clip_norm(self) -> float:
        """sqrt(sum C_W^2): the largest norm of one example's clipped gradient over all blocks."""
        return math.hypot(*self.clip_norms)
