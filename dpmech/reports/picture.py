"""The trade-off curve as points of a drawing: how much an attack can find at a rate of false suspicions."""

import dataclasses
import math
from collections.abc import Sequence

from dpmech.numerics import product_up, up
from dpmech.reports.attacks import RATES, Attacks, power_bounds

__all__ = ["Mark", "Picture", "picture_of"]

_WIDTH, _HEIGHT = 640.0, 390.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 84.0, 16.0, 40.0, 66.0
# Decades of the false-positive rate.
_FIRST = -4
_PER_DECADE = 40
_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclasses.dataclass(frozen=True)
class Mark:
    """A point of the picture with words beside it; x and y in its units."""

    x: float
    y: float
    label: str


@dataclasses.dataclass(frozen=True)
class Picture:
    """What a template draws, in units of the picture.

    Attributes:
        width: of all.
        height: of all.
        frame: left, top, right and bottom of the axes.
        curve: points of the bound.
        beyond: the corners of what no attack reaches: the curve, closed along the top.
        claim: points of what (eps, delta) alone allows; empty where the curve is that.
        guess: points of guessing at random.
        across: marks of the horizontal axis.
        upward: marks of the vertical axis.
        marks: what the report speaks of.
    """

    width: float
    height: float
    frame: tuple[float, float, float, float]
    curve: str
    beyond: str
    claim: str
    guess: str
    across: tuple[Mark, ...]
    upward: tuple[Mark, ...]
    marks: tuple[Mark, ...]


def picture_of(attacks: Attacks, claim: tuple[float, float]) -> Picture:
    """The picture of some numbers.

    Args:
        attacks: the numbers.
        claim: (eps, delta).
    """
    count = -_FIRST * _PER_DECADE
    rates = [10.0 ** (_FIRST + index / _PER_DECADE) for index in range(count)] + [1.0]
    curve = _points(rates, power_bounds(attacks.points, rates))
    left, top, right, bottom = _LEFT, _TOP, _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    return Picture(
        _WIDTH,
        _HEIGHT,
        (left, top, right, bottom),
        curve,
        f"{left:.2f},{top:.2f} {curve} {right:.2f},{top:.2f}",
        "" if attacks.basis == "claim" else _points(rates, power_bounds([claim], rates)),
        _points(rates, rates),
        tuple(
            Mark(_across(10.0**power), bottom, f"{10.0 ** (power + 2):.10g} %") for power in range(_FIRST, 1)
        ),
        tuple(Mark(left, _upward(share), f"{100.0 * share:.0f} %") for share in _SHARES),
        tuple(_mark(rate, attacks.upper(rate)) for rate in RATES),
    )


def _mark(rate: float, found: float) -> Mark:
    share = up(min(100.0, product_up(100.0, found)), 3)
    return Mark(_across(rate), _upward(found), f"{share} %")


def _points(rates: Sequence[float], shares: Sequence[float]) -> str:
    pairs = zip(rates, shares, strict=True)
    return " ".join(f"{_across(rate):.2f},{_upward(share):.2f}" for rate, share in pairs)


def _across(rate: float) -> float:
    return _LEFT + (_WIDTH - _RIGHT - _LEFT) * (math.log10(rate) - _FIRST) / -_FIRST


def _upward(share: float) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * share
