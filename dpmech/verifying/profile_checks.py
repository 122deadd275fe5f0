"""The nodes of a profile in a certificate, each against draws of the verifier's own, or a closed form.

A node of a direction says that delta at its eps is in [lower, upper]. As delta does not rise, of equal upper
ends the first one is what has to be shown, and of equal lower ends the last one. An upper end that no
amplification is needed for is shown by the integral of the Gaussian hockey stick. For every other one the
mean weight of an importance sample, less six standard errors, may not be above it, nor that plus six below a
lower one. Where a sample says nothing, transforms do for independent bins; else a proved bound on its weights
has to.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from dpmech.accounting import (
    BinGram,
    Composition,
    Curve,
    CurveEstimate,
    Deterministic,
    FreshEpochsAccountant,
    Nodes,
    Rdp,
    accountant_for,
    add_mixture,
    bin_gram,
    estimate_curve,
    remove_mixture,
    sampling_gram,
)
from dpmech.certificates import Certificate, ProfileNodes
from dpmech.exceptions import UnsupportedCombinationError
from dpmech.mechanism import Identity
from dpmech.numerics import FloatArray, between, up
from dpmech.verifying.allocation_transform import one_allocation_delta
from dpmech.verifying.integrals import gaussian_integral
from dpmech.verifying.labels import nodes_method
from dpmech.verifying.report import Check

__all__ = ["profile_checks"]

_Mask: TypeAlias = npt.NDArray[np.bool_]

# An honest node is refused by chance about once in 1e9 times; there are some hundred.
_ERRORS = 6.0
# What a sample has to show: a standard error, and a largest weight, that are at most this part of the mean.
_RESOLVED, _EVEN = 0.1, 0.05
# Which nodes share draws is up to the file: what they then show less well than this is drawn for alone.
_SHARED = 0.02
# Samplers take eps above 0 only; below it delta changes by less than that.
_SMALLEST_EPS = 1e-9
_ROUNDING = 1e-6
# Ends below it are held to it: what they say beyond that moves a total by no more, for every release.
_LEAST = 1e-12
# How many nodes a method that draws nothing has to prove again, and what it may take where it misses one.
_PROVED, _FINER = 3, Deterministic(rel_error=0.01)
# Of a transform, relative in delta.
_TRANSFORM_ERROR = 1e-3


@dataclasses.dataclass(frozen=True)
class _Part:
    """One curve, and what it is of.

    Attributes:
        curve: as stated.
        gram: the Gram matrix at sigma.
        multiplier: sigma over the sensitivity without amplification.
        bins: how many, where they share no noise; else None.
    """

    curve: Curve
    gram: BinGram
    multiplier: float
    bins: int | None = None


@dataclasses.dataclass(frozen=True)
class _Found:
    """What is known of nodes that were looked at.

    Attributes:
        nodes: how many hold.
        slack: by how much of delta an upper end may be too low at most, though it holds.
        closest: the least ratio of an upper end to what was drawn; infinite where nothing was.
        floored: whether an upper end was so small that something larger was shown in its place.
        problem: what is wrong with one of them, in words.
    """

    nodes: int = 0
    slack: float = _ROUNDING
    closest: float = math.inf
    floored: bool = False
    problem: str = ""

    def with_also(self, other: "_Found") -> "_Found":
        """All of both, where nothing is wrong."""
        return _Found(
            self.nodes + other.nodes,
            max(self.slack, other.slack),
            min(self.closest, other.closest),
            self.floored or other.floored,
        )

    def __str__(self) -> str:
        said = [
            f"{self.nodes} nodes hold",
            f"no upper end is too low by more than {up(100.0 * self.slack, 2)} %",
        ]
        if self.floored:
            said.append(f"ends below {_LEAST:g} count as {_LEAST:g}")
        if self.closest < math.inf:
            said.append(f"the closest is {up(self.closest, 4)} times what was drawn")
        return "; ".join(said)


def profile_checks(certificate: Certificate, rng: np.random.Generator | None) -> Iterator[Check]:
    """One check of the profile that a certificate brings; nothing where it brings none.

    Args:
        certificate: whose claim holds.
        rng: of the draws; None takes entropy from the operating system.

    Raises:
        UnsupportedCombinationError: where no second route to a curve is known.
    """
    if certificate.nodes is None:
        return
    parts = _parts(certificate, certificate.nodes)
    if isinstance(parts, str):
        yield Check("profile", ok=False, detail=parts)
        return
    every = _Found()
    for part in parts:
        for add in (False, True):
            found = _checked(part, rng, add=add)
            if found.problem:
                yield Check("profile", ok=False, detail=found.problem)
                return
            every = every.with_also(found)
        if part.curve.larger is not None and (problem := _larger(part, part.curve.larger, rng)):
            yield Check("profile", ok=False, detail=problem)
            return
    if problem := _unproved(certificate, certificate.nodes, rng):
        yield Check("profile", ok=False, detail=problem)
        return
    yield Check("profile", ok=True, detail=str(every))


def _parts(own: Certificate, nodes: ProfileNodes) -> list[_Part] | str:
    """Every curve with its own Gram matrix; or what is wrong with the list."""
    scale, bins = own.sigma**-2, own.participation.epoch_bins
    stated = [times for _, times in nodes.curves]
    if bins is not None and not own.participation.certain:
        accountant = accountant_for(own.mechanism, None)
        if isinstance(accountant, FreshEpochsAccountant):
            due = [times for _, times in accountant.epochs]
            if stated != due:
                return f"the profile has curves for {stated} epochs, the run has {due}"
            one = bin_gram(Identity(bins), bins)
            return [
                _Part(curve, one.scaled(norm.upper**2 * scale), own.sigma / norm.upper, bins)
                for (curve, _), (norm, _) in zip(nodes.curves, accountant.epochs, strict=True)
            ]
    bins = own.participation.allocation_bins
    if bins is None or own.participation.certain:
        raise UnsupportedCombinationError(
            f"no second route to the curve of {own.participation!r}", supported="BallsInBins"
        )
    if stated != [1]:
        return f"the profile has curves for {stated} runs, the certificate is of one"
    gram = sampling_gram(own.strategy, bins).scaled(scale)
    alone = bins if own.strategy.bands == 1 else None
    return [_Part(nodes.curves[0][0], gram, own.sigma / own.sensitivity.upper, alone)]


def _checked(part: _Part, rng: np.random.Generator | None, *, add: bool) -> _Found:
    """What is known of the ends of one direction."""
    name, nodes = ("ADD", part.curve.add) if add else ("REMOVE", part.curve.remove)
    eps, lower, upper = (np.array(ends) for ends in (nodes.eps, nodes.lower, nodes.upper))
    floored = bool(np.any(upper < _LEAST))
    upper, lower = np.maximum(upper, _LEAST), np.where(lower < _LEAST, 0.0, lower)
    tops = np.append(True, np.diff(upper) < 0.0)
    plain = np.array([gaussian_integral(part.multiplier, float(one)) for one in eps])
    tops &= upper < np.minimum(plain, 1.0) * (1.0 - _ROUNDING)
    lows = (lower > 0.0) & np.append(np.diff(lower) < 0.0, True)
    drawn = tops | lows
    if not drawn.any():
        return _Found(int(eps.size), floored=floored)
    at = np.maximum(eps[drawn], _SMALLEST_EPS)
    # Equal ones, near 0, are asked for once.
    every, places = np.unique(at, return_inverse=True)
    firsts = np.searchsorted(at, every)
    found = _estimated(part.gram, every, upper[drawn][firsts], add=add, rng=rng)
    mean, off = found.delta[places], _ERRORS * (found.delta * found.relative_error)[places]
    seen = ((found.relative_error <= _RESOLVED) & (found.largest_share <= _EVEN))[places]
    for place in np.flatnonzero(~seen).tolist():
        value = _transformed(part, float(at[place]), add=add)
        if value is not None:
            mean[place], off[place], seen[place] = value, _TRANSFORM_ERROR * value, True
    top, low = upper[drawn], lower[drawn]
    high = tops[drawn] & ((top < mean - off) | ~(seen | _bounded(part.gram, at, top, seen, add=add)))
    deep = lows[drawn] & ((low > mean + off + (at - eps[drawn])) | ~seen)
    for wrong, end, side in ((high, top, "at most"), (deep, low, "at least")):
        if wrong.any():
            place = int(np.argmax(wrong))
            least, most = max(0.0, float((mean - off)[place])), float((mean + off)[place])
            return _Found(
                problem=f"{name} at eps {float(eps[drawn][place])!r} is stated to be {side} "
                f"{float(end[place])!r}; draws of this check's own have it in {between(least, most)}"
                + ("" if seen[place] else ", too few to tell")
            )
    # Those that no draws show have a proved bound.
    shown = tops[drawn] & seen
    low_by = (1.0 - top / np.maximum(mean + off, 1e-300))[shown]
    ratios = (top / np.maximum(mean, 1e-300))[shown]
    return _Found(
        int(eps.size),
        float(low_by.max(initial=_ROUNDING)),
        float(ratios.min(initial=math.inf)),
        floored,
    )


def _unproved(own: Certificate, nodes: ProfileNodes, rng: np.random.Generator | None) -> str:
    """What the programme or moments do not prove again, at a few nodes that are said to come from them.

    Draws have nothing to show that a bound was proved without any: nodes from samples would pass for it.
    """
    method = nodes_method(nodes)
    if not isinstance(method, Deterministic | Rdp):
        return ""
    curve = nodes.curves[0][0]
    # Of equal ends the first one has to be shown.
    ends = [
        (at, max(upper, _LEAST))
        for side in (curve.remove, curve.add)
        for at, upper, before in zip(side.eps, side.upper, (1.0, *side.upper), strict=False)
        if upper < before
    ]
    draw = rng or np.random.default_rng()
    chosen = draw.permutation(len(ends))[:_PROVED]
    tries = (method, _FINER) if isinstance(method, Deterministic) else (method,)
    for at, stated in (ends[place] for place in chosen):
        again = math.inf
        for one in tries:
            accountant = accountant_for(own.mechanism, one)
            again = min(again, accountant.delta(own.sigma, at, tolerance=_TRANSFORM_ERROR).upper)
            if again <= stated * (1.0 + _ROUNDING):
                break
        else:
            return (
                f"delta at eps {at!r} is stated to be at most {stated!r}, as {nodes.by} has it; "
                f"again it gives {up(again)}"
            )
    return ""


def _estimated(
    gram: BinGram, eps: FloatArray, about: FloatArray, *, add: bool, rng: np.random.Generator | None
) -> CurveEstimate:
    """Delta at the nodes: of many from shared draws, of what these show badly from draws of its own."""
    found = estimate_curve(gram, eps, about, add=add, rng=rng)
    delta, error, share = (one.copy() for one in (found.delta, found.relative_error, found.largest_share))
    # NaN is none of these.
    shown = (error <= _SHARED) & (share <= _EVEN)
    for place in np.flatnonzero(~shown).tolist():
        at = slice(place, place + 1)
        alone = estimate_curve(gram, eps[at], about[at], add=add, rng=rng)
        if np.isfinite(alone.relative_error[0]):
            delta[at], error[at], share[at] = alone.delta, alone.relative_error, alone.largest_share
    return dataclasses.replace(found, delta=delta, relative_error=error, largest_share=share)


def _transformed(part: _Part, eps: float, *, add: bool) -> float | None:
    """One direction of independent bins by transforms, where samples show nothing; None where they fail."""
    if part.bins is None:
        return None
    tilt = Composition(curves=((part.curve, 1),)).tilt(eps, add=add)  # decides only how many digits are left
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            return one_allocation_delta(part.bins, 1.0 / part.multiplier, eps, tilt, add=add)
    except (ArithmeticError, ValueError):
        return None


def _bounded(gram: BinGram, eps: FloatArray, upper: FloatArray, seen: _Mask, *, add: bool) -> _Mask:
    """Where a proved bound on every weight, and so on delta, is below an upper end that no sample shows."""
    make = add_mixture if add else remove_mixture
    held = np.zeros(eps.size, dtype=np.bool_)
    for place in np.flatnonzero(~seen):
        bound = make(gram, float(eps[place])).log_weight_bound
        held[place] = bound <= math.log(max(float(upper[place]), 1e-320))
    return held


def _larger(part: _Part, nodes: Nodes, rng: np.random.Generator | None) -> str:
    """What is wrong with lower ends of the larger direction."""
    eps, lower = np.array(nodes.eps), np.array(nodes.lower)
    lows = (lower > 0.0) & np.append(np.diff(lower) < 0.0, True)
    if not lows.any():
        return ""
    every = np.unique(np.maximum(eps[lows], _SMALLEST_EPS))
    least = np.interp(every, eps, lower)
    highest = np.zeros(every.size)
    for add in (False, True):
        found = estimate_curve(part.gram, every, least, add=add, rng=rng)
        seen = (found.relative_error <= _RESOLVED) & (found.largest_share <= _EVEN)
        high = found.delta * (1.0 + _ERRORS * found.relative_error) * seen
        highest = np.maximum(highest, high)
    wrong = least > highest + _SMALLEST_EPS * (every <= _SMALLEST_EPS)
    if not wrong.any():
        return ""
    place = int(np.argmax(wrong))
    return (
        f"delta at eps {float(every[place])!r} is stated to be at least {float(least[place])!r}; draws of "
        f"this check's own have it at most {float(highest[place])!r}"
    )
