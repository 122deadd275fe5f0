"""Which theorem covers a mechanism, by which method; or a refusal."""

import dataclasses
from collections.abc import Callable

import numpy as np

from dpmech.engines import (
    Accountant,
    AllocationRenyiAccountant,
    Certified,
    Deterministic,
    Exact,
    FreshEpochsAccountant,
    Importance,
    ImportanceAccountant,
    IndependentAccountant,
    Method,
    Pld,
    PoissonAccountant,
    PoissonRelease,
    Prv,
    PrvAccountant,
    Rdp,
    RenyiAccountant,
    bin_gram,
    check_nonnegative,
)
from dpmech.exceptions import UnsupportedCombinationError
from dpmech.mechanism import Mechanism, Participation, Registry
from dpmech.numerics import Bounds, Provenance, product_down
from dpmech.schemes.b_min_sep import MinSepSampling, min_sep_sampling
from dpmech.schemes.balls_in_bins import (
    BallsInBins,
    FreshBallsInBins,
    UserBallsInBins,
    accountant_in_turn,
    certified_accountant,
    deterministic_accountant,
    user_balls_in_bins,
)
from dpmech.schemes.cyclic_poisson import CyclicPoisson, UserCyclicPoisson
from dpmech.schemes.fixed_size import FixedSizeLots
from dpmech.schemes.independent_noise import (
    CLOSE,
    fixed_size_lots,
    least_of_releases,
    truncated_poisson,
    unsampled,
    user_poisson,
)
from dpmech.schemes.poisson import Poisson, UserPoisson
from dpmech.schemes.truncated_poisson import TruncatedPoisson

# Bounds without samples in place of samples: for small delta, where they are needed, so much of it is less
# than a hundredth of sigma. The work that they may take is as counted; measured it was a third to a quarter.

Find = Callable[[Mechanism, Method | None, np.random.Generator | None], Accountant]


@dataclasses.dataclass(frozen=True)
class Scheme:
    """How mechanisms are accounted for whose participation chance decides in one way.

    Args:
        accountant: of a mechanism, for a method (None: the default one), with the random numbers of sampled
            accountants; refuses what no theorem covers.
        default: the method that None stands for.
        unsampled: a method whose result is a bound and that draws nothing, where the default one draws.
    """

    accountant: Find
    default: Method
    unsampled: Method | None = None


SCHEMES: Registry[Scheme] = Registry("an accountant")


def accountant_for(
    mechanism: Mechanism, method: Method | None, rng: np.random.Generator | None = None
) -> Accountant:
    """The accountant of a mechanism; `rng` serves randomised ones.

    Raises:
        UnsupportedCombinationError: if no theorem covers it.
    """
    if not (mechanism.participation.random or mechanism.participation.per_release):
        return unsampled(mechanism.sensitivity, method)
    return _scheme(mechanism.participation).accountant(mechanism, method, rng)


def effective_method(participation: Participation, method: Method | None) -> Method:
    """What `accountant_for` acts on: the default in place of None, and Exact where nothing is random."""
    if participation.certain:
        return method if isinstance(method, Rdp) else Exact()
    return _scheme(participation).default if method is None else method


def unsampled_method(participation: Participation) -> Method | None:
    """The method whose result leaves nothing to chance; None where that of the default one does not."""
    return _scheme(participation).unsampled if participation.random else None


def method_among(participation: Participation, method: Method | None, calls: int) -> Method | None:
    """The method for one of several calls of which one will be picked.

    Picking by what came out is one more way to fail: a certified sample gets a share of its beta. Of an
    estimate nothing is proved that could be kept.
    """
    used = effective_method(participation, method)
    return used.among(calls) if calls > 1 and isinstance(used, Certified) else method


def _scheme(participation: Participation) -> Scheme:
    scheme = SCHEMES.find(participation)
    if scheme is None:
        raise UnsupportedCombinationError(
            f"no accountant is registered for {participation!r}",
            supported="participations that are not random, Poisson, UserPoisson, TruncatedPoisson, "
            "FixedSizeLots, MinSepSampling, CyclicPoisson, UserCyclicPoisson, BallsInBins, UserBallsInBins "
            "and FreshBallsInBins",
        )
    return scheme


def _poisson_release(mechanism: Mechanism) -> PoissonRelease:
    participation = mechanism.participation
    if participation.release_prob is None:
        raise UnsupportedCombinationError(
            f"{participation!r} is not sampled release by release", supported="Poisson and CyclicPoisson"
        )
    least = least_of_releases(mechanism)
    steps = participation.releases(mechanism.steps)
    # Above, every release counts with the largest norm; below, with the smallest one of a group.
    bounds, tight = mechanism.sensitivity, least >= 1.0 - CLOSE
    if tight:
        bounds = dataclasses.replace(bounds, lower=product_down(bounds.lower, least))
    return PoissonRelease(participation.release_prob, steps, bounds, tight=tight)


def _balls_in_bins(
    mechanism: Mechanism, method: Method | None, rng: np.random.Generator | None
) -> Accountant:
    strategy, bounds = mechanism.strategy, mechanism.sensitivity
    bins = mechanism.participation.allocation_bins
    if bins is None:
        raise UnsupportedCombinationError(
            f"{mechanism.participation!r} puts nobody into bins", supported="BallsInBins"
        )
    if mechanism.certain:
        # Everyone is in the same bin: nothing is random, and the unsampled formula is exact.
        return unsampled(bounds, method if isinstance(method, Rdp) else None)
    check_nonnegative(strategy)
    independent = strategy.bands == 1 and bin_gram(strategy, bins).independent
    if isinstance(method, Exact) and independent:
        return IndependentAccountant(bins, bounds)
    # One of several calls of which one will be picked comes here as the default with its share of beta.
    unasked = Certified(calls=method.calls) if isinstance(method, Certified) and method.calls > 1 else None
    if method is None or method == unasked:
        # Where the first refuses, as a proof by sampling would take too long, the best of the others answers.
        sampled = method or Certified()
        return accountant_in_turn(strategy, bins, bounds, sampled, rng, independent=independent)
    if isinstance(method, Certified):
        return certified_accountant(strategy, bins, bounds, method, rng)
    if isinstance(method, Importance):
        return ImportanceAccountant(bin_gram(strategy, bins), bounds, method, rng)
    if isinstance(method, Deterministic):
        return deterministic_accountant(strategy, bins, bounds, method)
    if isinstance(method, Exact) and strategy.bands == 1:
        return deterministic_accountant(strategy, bins, bounds, Deterministic(rel_error=0.005))
    if isinstance(method, Rdp):
        return AllocationRenyiAccountant(bin_gram(strategy, bins), bounds)
    raise UnsupportedCombinationError(
        f"{method!r} does not apply to {mechanism.participation!r} with {strategy!r}",
        supported="method=None, Certified(), Importance(), Deterministic(), Rdp(); Exact() for Identity",
    )


def _user_balls_in_bins(
    mechanism: Mechanism, method: Method | None, rng: np.random.Generator | None
) -> Accountant:
    if mechanism.certain:
        # All examples of everyone are in the same bin: one of norm m.
        return unsampled(mechanism.sensitivity, method if isinstance(method, Rdp) else None)
    return user_balls_in_bins(mechanism, method, rng)


def _fresh_balls_in_bins(
    mechanism: Mechanism, method: Method | None, rng: np.random.Generator | None
) -> Accountant:
    del rng
    strategy, bounds, bins = mechanism.strategy, mechanism.sensitivity, mechanism.participation.epoch_bins
    if bins is None:
        raise UnsupportedCombinationError(
            f"{mechanism.participation!r} allocates nobody anew every epoch", supported="FreshBallsInBins"
        )
    if mechanism.certain:
        return unsampled(bounds, method if isinstance(method, Rdp) else None)
    check_nonnegative(strategy)
    if strategy.bands != 1:
        raise UnsupportedCombinationError(
            f"{mechanism.participation!r} is accounted for where all steps have independent noise, and "
            f"{strategy!r} correlates it",
            supported="Identity, and Diagonal with equal noise within each epoch; for correlated noise "
            f"BallsInBins({bins}), or dm.profile of one epoch under it, composed with itself, where noise "
            "starts anew every epoch",
        )
    norms = strategy.column_norms().reshape(-1, bins)
    if np.any(norms.min(axis=1) < norms.max(axis=1) * (1.0 - CLOSE)):
        raise UnsupportedCombinationError(
            f"{mechanism.participation!r} needs equal noise at all steps of an epoch, which "
            f"{strategy!r} has not",
            supported=f"Identity, Diagonal with equal noise within each epoch, or BallsInBins({bins})",
        )
    if not (method is None or isinstance(method, Exact)):
        raise UnsupportedCombinationError(
            f"{method!r} does not apply to {mechanism.participation!r}", supported="method=None or Exact()"
        )
    moved = 1.01 * (strategy.error + strategy.gram_rounding)
    by = Provenance("sensitivity.largest_column")
    alike, times = np.unique(
        np.stack([norms.min(axis=1), norms.max(axis=1)], axis=1), axis=0, return_counts=True
    )
    epochs = tuple(
        (Bounds.bracket(float(least), float(most), by).widened(moved), int(count))
        for (least, most), count in zip(alike, times, strict=True)
    )
    return FreshEpochsAccountant(bins, epochs, bounds)


def _poisson(mechanism: Mechanism, method: Method | None, rng: np.random.Generator | None) -> Accountant:
    del rng
    release = _poisson_release(mechanism)
    if isinstance(method, Rdp):
        return RenyiAccountant(release.sensitivity, release.sampling_prob, release.steps)
    if mechanism.certain:
        # Not sampled at all: T Gaussian releases are one with sensitivity sqrt(T).
        bounds = release.sensitivity.times_root(release.steps)
        if not release.tight:
            bounds = Bounds.bracket(release.sensitivity.lower, bounds.upper, bounds.by)
        return unsampled(bounds, None if isinstance(method, Pld | Prv) else method)
    if method is None or isinstance(method, Pld):
        return PoissonAccountant(release)
    if isinstance(method, Prv):
        return PrvAccountant(release)
    raise UnsupportedCombinationError(
        f"{method!r} does not apply to Poisson sampling", supported="method=None, Pld(), Prv() or Rdp()"
    )


SCHEMES.add(Poisson, Scheme(_poisson, default=Pld()))
SCHEMES.add(UserPoisson, Scheme(user_poisson, default=Pld()))
SCHEMES.add(TruncatedPoisson, Scheme(truncated_poisson, default=Pld()))
SCHEMES.add(FixedSizeLots, Scheme(fixed_size_lots, default=Pld()))
SCHEMES.add(MinSepSampling, Scheme(min_sep_sampling, default=Certified()))
SCHEMES.add(CyclicPoisson, Scheme(_poisson, default=Pld()))
SCHEMES.add(UserCyclicPoisson, Scheme(user_poisson, default=Pld()))
SCHEMES.add(BallsInBins, Scheme(_balls_in_bins, default=Certified(), unsampled=Deterministic()))
SCHEMES.add(UserBallsInBins, Scheme(_user_balls_in_bins, default=Certified(), unsampled=Rdp()))
SCHEMES.add(FreshBallsInBins, Scheme(_fresh_balls_in_bins, default=Exact(), unsampled=Exact()))
