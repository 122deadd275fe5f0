"""Normal numbers of float64 from random words, most of them from one word and eight operations.

As in `box_muller`, numbers come from additions, multiplications, divisions, square roots and shifts only, so
that their bits are the same on every machine.
"""

import functools
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmech.optim.noise.box_muller import PairMaker

__all__ = ["LAYERS", "ZigguratMaker", "edges"]

_Words = npt.NDArray[np.uint64]
_Floats = npt.NDArray[np.float64]

LAYERS = 256
# Where the tail begins, and the area of a layer: with these the last layer ends at 0.
_TAIL = Decimal("3.6541528853610087716454297203995157629748545997463")
_AREA = Decimal("0.0049286732339746553473617754023360280691353847028565")
_BELOW_ONE = 1.0 - 2.0**-53


class ZigguratMaker:
    r"""Independent standard normal numbers by the ziggurat of Marsaglia and Tsang, in the form of Doornik.

    The density $f(x) = e^{-x^2/2}$ lies under 256 layers of one area. The lowest 8 bits of a word choose a
    layer i, its upper 53, read with a sign as m, give $x = (m + 1/2) 2^{-52} x_i$. Where $|x| < x_{i+1}$ x is
    taken; else it is taken with the probability of the part of the layer at x that is under f, or the number
    begins anew; in the lowest layer it comes from the tail, $R - \ln(u)/R$ where $-2 \ln u' > (\ln(u)/R)^2$.

    **Guarantee:** none on roundings: edges and products are rounded to 2^-53 of their size, and x is in the
    middle of a cell of at most 2^-50. For a proved bound there is PairMaker, on a lattice.

    Args:
        most: how many numbers are made at once; any number of them is taken.

    References:
        Marsaglia and Tsang 2000, "The ziggurat method for generating random variables"; Doornik 2005, "An
        improved ziggurat method to generate normal random samples".
    """

    near = 2.0**-40  # far above the error of any library's exponential

    def __init__(self, most: int) -> None:
        self.most = most
        self._edges, self._heights = edges()
        self._widths = self._edges[:-1] * 2.0**-52
        self._x, self._scratch = np.empty(most), np.empty(most)
        self._numbers = np.empty(most, dtype=np.int64)
        self._layers = np.empty(most, dtype=np.intp)
        self._outside = np.empty(most, dtype=bool)
        self._pairs = PairMaker(0)

    def make(
        self, words: Callable[[int], _Words], again: Callable[[int], _Words], out: npt.NDArray[Any]
    ) -> None:
        """Overwrite `out`.

        Args:
            words: the next so many words, one for each number.
            again: the same of another stream, for numbers that take more than one.
            out: one-dimensional, float64 or float32.
        """
        late: list[tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], _Floats]] = []
        for start in range(0, len(out), self.most):
            part = out[start : start + self.most]
            layers, x = self._candidates(words(len(part)))
            np.copyto(part, x, casting="same_kind")
            places = np.flatnonzero(self._outside[: len(part)])
            late.append((places + start, layers[places], x[places]))
        places, layers, x = (np.concatenate(parts) for parts in zip(*late, strict=True))
        while places.size:
            taken, x = self._settled(layers, x, again)
            out[places[taken]] = x[taken]
            left = np.flatnonzero(~taken)
            places, layers, x = places[left], layers[left], x[left]
            # In the tail it is drawn until one is taken; from a wedge everything begins anew.
            waiting, wedge = layers == 0, np.flatnonzero(layers)
            for start in range(0, len(wedge), self.most):
                fresh = wedge[start : start + self.most]
                layers[fresh], x[fresh] = self._candidates(again(len(fresh)))
                waiting[fresh] = self._outside[: len(fresh)]
            out[places[~waiting]] = x[~waiting]
            places, layers, x = places[waiting], layers[waiting], x[waiting]

    def _candidates(self, words: _Words) -> tuple[npt.NDArray[np.intp], _Floats]:
        """Layers and x of words, until the next call; `_outside` says which x are not taken at once."""
        count = len(words)
        layers, x, scratch = self._layers[:count], self._x[:count], self._scratch[:count]
        np.bitwise_and(words.view(np.int64), LAYERS - 1, out=layers, casting="same_kind")
        np.right_shift(words.view(np.int64), 11, out=self._numbers[:count])
        np.add(self._numbers[:count], 0.5, out=x)
        self._widths.take(layers, out=scratch, mode="clip")
        np.multiply(x, scratch, out=x)
        self._edges[1:].take(layers, out=scratch, mode="clip")
        sizes = self._numbers[:count].view(np.float64)
        np.abs(x, out=sizes)
        np.greater_equal(sizes, scratch, out=self._outside[:count])
        return layers, x

    def _settled(
        self, layers: npt.NDArray[np.intp], x: _Floats, again: Callable[[int], _Words]
    ) -> tuple[npt.NDArray[np.bool_], _Floats]:
        """Which numbers beyond the next layer are taken, and their values."""
        wedge, tail = np.flatnonzero(layers > 0), np.flatnonzero(layers == 0)
        drawn = again(len(wedge) + 2 * len(tail))
        low, high = self._heights[layers[wedge]], self._heights[layers[wedge] + 1]
        height = low + (high - low) * (((drawn[: len(wedge)] >> np.uint64(11)) + 0.5) * 2.0**-53)
        taken, values = np.empty(len(x), dtype=bool), x.copy()
        density = np.exp(np.square(x[wedge]) * -0.5)
        below = height < density
        # Exponentials of libraries differ in their last bits: what these could decide goes without them.
        near = np.flatnonzero(np.abs(height - density) < self.near)
        if near.size:
            words = (np.minimum(height[near], _BELOW_ONE) * 2.0**64).astype(np.uint64)
            logs = np.square(self._pairs.radii(words, np.zeros(near.size)))
            below[near] = logs > np.square(x[wedge[near]])
        taken[wedge] = below
        if tail.size:
            logs = np.square(self._pairs.radii(drawn[len(wedge) :], np.full(2 * len(tail), 0.5)))
            first, second = logs.reshape(2, -1)
            beyond = first * 0.5 / self._edges[1]
            taken[tail] = second > np.square(beyond)
            values[tail] = np.copysign(self._edges[1] + beyond, x[tail])
        return taken, values


@functools.cache
def edges() -> tuple[_Floats, _Floats]:
    """The edges x_0 > ... > x_256 = 0 of the layers, and f there; each rounded to nearest from 45 digits.

    x_0 is the width of a rectangle of the height f(x_1) that has the area of a layer.
    """
    own = Context(prec=45)

    def density(x: Decimal) -> Decimal:
        return own.exp(own.multiply(own.multiply(x, x), Decimal("-0.5")))

    found = [own.divide(_AREA, density(_TAIL)), _TAIL]
    heights = [Decimal(0), density(_TAIL)]
    for _ in range(LAYERS - 2):
        heights.append(own.add(heights[-1], own.divide(_AREA, found[-1])))
        found.append(own.sqrt(own.multiply(Decimal(-2), own.ln(heights[-1]))))
    return np.array([*found, 0.0], dtype=np.float64), np.array([*heights, 1.0], dtype=np.float64)
