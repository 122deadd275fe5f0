"""The accountants of Balls-in-Bins, for examples and for users, and with a new allocation in every epoch."""

import math

import numpy as np

from dpmech.engines import (
    CLOSE,
    Accountant,
    AllocationRenyiAccountant,
    BlockBound,
    Certified,
    CertifiedAccountant,
    Deterministic,
    DeterministicAccountant,
    Exact,
    FreshEpochsAccountant,
    Importance,
    ImportanceAccountant,
    IndependentAccountant,
    InTurnAccountant,
    Method,
    Rdp,
    Turn,
    bin_gram,
    check_nonnegative,
    half_space_add,
    lower_gram,
    lower_profiles,
    lower_tuple_gram,
    ring_profile,
    sampling_gram,
    tuple_gram,
    unsampled,
)
from dpmech.exceptions import UnsupportedCombinationError
from dpmech.mechanism import Mechanism, Strategy
from dpmech.numerics import Bounds, Provenance
from dpmech.schemes.balls_in_bins.default import DeterministicFirst
from dpmech.schemes.balls_in_bins.participation import BallsInBins

_COARSE = Deterministic(rel_error=0.4)
_FINE = Deterministic(rel_error=0.1)
_AT_ONCE, _QUICK, _LAST_RESORT = 40.0, 200.0, 600.0
# A proof by sampling whose target is this far above the true sigma, in log, is tried after, and beyond the
# second limit long after, other accountants.
_WIDE, _WIDEST = 0.03, 0.05
# With more bins, samples are tried before a calibration without them.
_MOST_BINS = 1000


def accountant_in_turn(
    strategy: Strategy,
    bins: int,
    bounds: Bounds,
    sampled: Certified,
    rng: np.random.Generator | None,
    *,
    independent: bool,
) -> InTurnAccountant:
    """Try the proof by samples first; if its target is too high, use the best of the other accountants.

    Before both, calibrations use no samples where the plan says that it makes no difference.

    Args:
        strategy: C >= 0.
        bins: b.
        bounds: the sensitivity.
        sampled: the method of the proof by samples.
        rng: its random numbers; None for the default source.
        independent: whether bins share no noise: the distribution of their sum is then used first.
    """
    turns = [
        Turn(_FINE, lambda: deterministic_accountant(strategy, bins, bounds, _FINE), _QUICK, spare=True),
        Turn(
            _COARSE,
            lambda: deterministic_accountant(strategy, bins, bounds, _COARSE),
            _LAST_RESORT,
            spare=True,
        ),
        Turn(
            sampled,
            lambda: certified_accountant(strategy, bins, bounds, sampled, rng),
            spare=True,
            again=not independent,
        ),
        Turn(Rdp(), lambda: AllocationRenyiAccountant(sampling_gram(strategy, bins), bounds)),
    ]
    if independent:
        return InTurnAccountant(IndependentAccountant(bins, bounds), turns)
    first = certified_accountant(strategy, bins, bounds, sampled, rng, reach=_WIDE)
    # before what takes minutes and is rough
    turns.insert(1, Turn(sampled, lambda: first.reaching(_WIDEST), again=True))
    return DeterministicFirst(
        first,
        turns,
        lambda: deterministic_accountant(strategy, bins, bounds),
        _AT_ONCE if bins <= _MOST_BINS else 0.0,
    )


def certified_accountant(
    strategy: Strategy,
    bins: int,
    bounds: Bounds,
    method: Certified,
    rng: np.random.Generator | None,
    *,
    reach: float = math.inf,
) -> CertifiedAccountant:
    """The accountant of bounds with probability 1 - beta; `reach` limits how far up a proof may aim."""
    return CertifiedAccountant(
        sampling_gram(strategy, bins),
        bounds,
        method,
        rng,
        lower=lower_gram(strategy, bins),
        settled_add=lambda sigma, eps: deterministic_accountant(strategy, bins, bounds).upper_add(sigma, eps),
        reach=reach,
    )


def deterministic_accountant(
    strategy: Strategy, bins: int, bounds: Bounds, method: Deterministic | None = None
) -> DeterministicAccountant:
    """The accountant of bounds without samples."""
    profile, gram = ring_profile(strategy, bins), sampling_gram(strategy, bins)
    below = BlockBound(bins, lambda most, dropped: lower_profiles(strategy, bins, most, dropped))
    return DeterministicAccountant(profile, gram, bounds, method or Deterministic(), below)


def of_examples(
    participation: BallsInBins, mechanism: Mechanism, method: Method | None, rng: np.random.Generator | None
) -> Accountant:
    """The accountant of examples that are allocated once for the whole run.

    Raises:
        UnsupportedCombinationError: for a strategy with negative entries, or a method that does not apply.
    """
    strategy, bounds, bins = mechanism.strategy, mechanism.sensitivity, participation.bins
    if participation.certain:
        # Every example is in the same bin: nothing is random; the formula without sampling is exact.
        return unsampled(bounds, method if isinstance(method, Rdp) else None)
    check_nonnegative(strategy)
    independent = strategy.bands == 1 and bin_gram(strategy, bins).independent
    if isinstance(method, Exact) and independent:
        return IndependentAccountant(bins, bounds)
    # A call that is one of several candidates arrives here with the default method and its share of beta.
    unasked = Certified(calls=method.calls) if isinstance(method, Certified) and method.calls > 1 else None
    if method is None or method == unasked:
        # If a proof by sampling would take too long and is refused, the best of the others is used.
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
        f"{method!r} does not apply to {participation!r} with {strategy!r}",
        supported="method=None, Certified(), Importance(), Deterministic(), Rdp(); Exact() for Identity",
    )


def of_fresh_bins(participation: BallsInBins, mechanism: Mechanism, method: Method | None) -> Accountant:
    """The accountant of new allocations in every epoch, for independent noise only.

    Raises:
        UnsupportedCombinationError: for correlated noise, noise that varies within an epoch, or a method that
            does not apply.
    """
    strategy, bounds, bins = mechanism.strategy, mechanism.sensitivity, participation.bins
    if participation.certain:
        return unsampled(bounds, method if isinstance(method, Rdp) else None)
    check_nonnegative(strategy)
    if strategy.bands != 1:
        raise UnsupportedCombinationError(
            f"{participation!r} is accounted for where all steps have independent noise, and "
            f"{strategy!r} correlates it",
            supported="Identity, and Diagonal with equal noise within each epoch; for correlated noise "
            f"BallsInBins({bins}), or dm.profile of one epoch under it, composed with itself, where noise "
            "starts anew every epoch",
        )
    norms = strategy.column_norms().reshape(-1, bins)
    if np.any(norms.min(axis=1) < norms.max(axis=1) * (1.0 - CLOSE)):
        raise UnsupportedCombinationError(
            f"{participation!r} needs equal noise at all steps of an epoch, which {strategy!r} does not have",
            supported=f"Identity, Diagonal with equal noise within each epoch, or BallsInBins({bins})",
        )
    if not (method is None or isinstance(method, Exact)):
        raise UnsupportedCombinationError(
            f"{method!r} does not apply to {participation!r}", supported="method=None or Exact()"
        )
    moved = 1.01 * (strategy.error + strategy.gram_rounding)
    by = Provenance("sensitivity.largest_column")
    alike, times = np.unique(
        np.stack([norms.min(axis=1), norms.max(axis=1)], axis=1), axis=0, return_counts=True
    )
    epochs = tuple(
        (bins, Bounds.bracket(float(least), float(most), by).widened(moved), int(count))
        for (least, most), count in zip(alike, times, strict=True)
    )
    fresh = Provenance("bins.fresh", {"bins": bins, "epochs": mechanism.steps // bins})
    return FreshEpochsAccountant(epochs, bounds, fresh)


def of_users(
    participation: BallsInBins,
    mechanism: Mechanism,
    method: Method | None,
    rng: np.random.Generator | None,
) -> Accountant:
    """The accountant of a mechanism whose users have several examples, each in an independent bin.

    Raises:
        UnsupportedCombinationError: for a strategy with negative entries, too many tuples of bins, or a
            method that does not apply.
    """
    strategy, bounds = mechanism.strategy, mechanism.sensitivity
    bins, examples = participation.bins, participation.examples
    if participation.certain:
        # All examples are in the same bin: a user is one example of norm m.
        return unsampled(bounds, method if isinstance(method, Rdp) else None)
    check_nonnegative(strategy)
    gram = tuple_gram(strategy, bins, examples)
    moments = AllocationRenyiAccountant(gram, bounds)
    # A call that is one of several candidates arrives here with the default method and its share of beta.
    unasked = Certified(calls=method.calls) if isinstance(method, Certified) and method.calls > 1 else None
    if method is None or isinstance(method, Certified):
        below = lower_tuple_gram(strategy, bins, examples)
        sampled = CertifiedAccountant(
            gram,
            bounds,
            method or Certified(),
            rng,
            lower=below,
            settled_add=lambda sigma, eps: half_space_add(gram.scaled(sigma**-2), eps),
        )
        if method is None or method == unasked:
            return InTurnAccountant(sampled, [Turn(Rdp(), lambda: moments)])
        return sampled
    if isinstance(method, Importance):
        return ImportanceAccountant(gram, bounds, method, rng)
    if isinstance(method, Rdp):
        return moments
    raise UnsupportedCombinationError(
        f"{method!r} does not apply to {participation!r}",
        supported="method=None, Certified(), Importance(), Rdp()",
    )
