r"""Design points: the means at which rare events of the Balls-in-Bins pair are sampled.

With `L(y) = log mean_l exp(y_l - K_ll / 2)`, REMOVE needs the set {L >= eps} and ADD the convex set
{L <= -eps}. For any probability vector w the variational formula gives
`L(y) >= w . y - w . diag(K) / 2 - KL(w || uniform)`, with equality at `w = softmax(y - diag(K) / 2)`. A
point of least norm has the form `y = K v`, `v = tau w`, and w is a fixed point of `w = softmax(tau K w -
diag(K) / 2)`. Design points affect the variance only; whatever rests on them here holds for any w.
"""

import dataclasses
import math

import numpy as np
import scipy

from dpmech.accounting.balls_in_bins.gram import BinGram
from dpmech.numerics import UNIT, FloatArray

__all__ = ["AddPoint", "add_point", "remove_points", "set_starts"]


REMOVE_STEPS = 12
ADD_STEPS = 60


@dataclasses.dataclass(frozen=True)
class AddPoint:
    """The direction of the ADD proposals N(-tau K w, K), tau >= 0.

    Attributes:
        direction: the probability vector w, shape (b,).
        image: K w, shape (b,).
        square: w^T K w.
        depth: c with `w . y <= -c` wherever L(y) <= -eps; it may be negative.
        rounding: how far that c, as computed, may be off.
    """

    direction: FloatArray
    image: FloatArray
    square: float
    depth: float
    rounding: float


def _divergence(points: FloatArray) -> FloatArray:
    """KL(w || uniform) for every row of `points`, shape (p,)."""
    out: FloatArray = scipy.special.xlogy(points, points * points.shape[1]).sum(axis=1)
    return out


def remove_points(gram: BinGram, eps: float, starts: FloatArray, steps: int = REMOVE_STEPS) -> FloatArray:
    """Tilts v of REMOVE proposals N(K v, K), shape (p, b), from starting vectors w of the same shape.

    Each is scaled so that the variational lower bound on L reaches eps at `K v`.

    Args:
        gram: the Gram matrix.
        eps: the privacy loss level.
        starts: probability vectors w, shape (p, b).
        steps: damped fixed-point steps; few, so that different starts stay different.

    Returns:
        The rows v = tau w.
    """
    half = 0.5 * gram.diagonal
    points = starts

    def lengths(points: FloatArray, images: FloatArray) -> FloatArray:
        reach = eps + points @ half + _divergence(points)
        out: FloatArray = reach / np.sum(images * points, axis=1)
        return out

    images = gram.matmat(points.T).T
    for _ in range(steps):
        target = scipy.special.softmax(lengths(points, images)[:, None] * images - half, axis=1)
        points = 0.5 * points + 0.5 * target
        images = gram.matmat(points.T).T
    tilts: FloatArray = lengths(points, images)[:, None] * points
    return tilts


def set_starts(bins: int, size: int, count: int, rng: np.random.Generator) -> FloatArray:
    """`count` probability vectors, each uniform on a random set of `size` bins, shape (count, b)."""
    starts = np.zeros((count, bins))
    for row in starts:
        row[rng.choice(bins, size, replace=False)] = 1.0 / size
    return starts


def add_point(gram: BinGram, eps: float) -> AddPoint:
    r"""The direction of the ADD design point, with the depth of the set {L <= -eps} along it.

    For any probability vector w the variational formula gives, wherever L <= -eps,
    `w . y <= L + w . diag(K) / 2 + KL(w || uniform) <= -c` with `c = eps - w . diag(K) / 2 - KL(w ||
    uniform)`. Where c > 0 the set lies beyond a hyperplane at distance `c / sqrt(w^T K w)`, and w is chosen
    to make that distance large.

    Args:
        gram: the Gram matrix.
        eps: at least 0.

    Returns:
        The w of the largest distance met during the iteration; uniform where c <= 0 there.
    """
    bins = gram.bins
    half = 0.5 * gram.diagonal
    point = np.full((1, bins), 1.0 / bins)
    # c adds up eps, b numbers of at most K_ll / 2 and log b, each times a probability, and b logarithms.
    top = float(gram.diagonal.max())
    off = (2.0 * bins + 40.0) * UNIT * (eps + top + 2.0 * math.log(bins) + 1.0) + gram.entry_rounding * top
    best = AddPoint(point[0], gram.matvec(point[0]), 1.0, 0.0, off)
    height = -math.inf
    for _ in range(ADD_STEPS):
        image = gram.matvec(point[0])
        square = float(image @ point[0])
        depth = eps - float(point[0] @ half) - float(_divergence(point)[0])
        found = math.copysign(depth**2, depth) / square
        if found > height:
            best = AddPoint(point[0], image, square, depth, off)
        # Any probability vector will do.
        if depth <= 0.0 or found - height < 1e-9 * abs(found):
            break
        height = max(height, found)
        target = scipy.special.softmax(-(depth / square) * image - half)
        point = 0.5 * point + 0.5 * target[None]
    return best
