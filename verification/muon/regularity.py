"""The DP-Muon paper: where the map after Newton-Schulz is smooth, and a stationary path."""

import itertools
import math
from collections.abc import Callable

import numpy as np

from verification.harness.nudging import nudge
from verification.harness.verdict import Verdict, judged, statement
from verification.muon.bias import quadrature
from verification.oracles import matrices as ref

PAPER = "muon"


@statement("muon.switch", paper=PAPER)
def smooth_but_not_twice(*, mapping: ref.Map | None = None, measured: float = 0.0412) -> Verdict:
    """Appendix C.2: on ||G||_F = 1 the map may fail to be C^2. It does: it is not even C^1 there.

    One-sided radial derivatives at diag(.8, .6): 0 outside, where the norm divides, and of norm `measured`
    inside. The bare iteration, without the norm, has no such jump: the switch makes it.
    """
    apply = ref.muon_map(2, 2) if mapping is None else mapping
    point, step = np.diag([0.8, 0.6]), 1e-6

    def jump(function: ref.Map) -> float:
        outside = (function((1.0 + step) * point) - function(point)) / step
        inside = (function(point) - function((1.0 - step) * point)) / step
        return float(np.linalg.norm(outside - inside))

    bare = jump(lambda matrix: ref.iterated(matrix, 2, 2))
    found = jump(apply)
    return Verdict(
        judged(max(bare, abs(found - measured)), 1e-4),
        "The check computes difference quotients from both sides with step 1e-6. Deviations are absolute.",
        2,
        max(bare, abs(found - measured)),
        f"At diag(.8, .6), kappa = q = 2, the derivative is 0 outside, and its norm is {found:.4f} inside.",
    )


def startup_denominator(momentum: float, updates: int) -> float:
    """s_t = (1 - m^t) / (1 - m)."""
    return (1.0 - momentum**updates) / (1.0 - momentum)


def laplacian(function: ref.Map, point: np.ndarray, step: float) -> np.ndarray:
    """Laplace F by fourth-order central differences."""
    total = point.size * -2.5 * function(point)
    for entry, distance, sign in itertools.product(range(point.size), (1, 2), (-1.0, 1.0)):
        offset = np.zeros(point.size)
        offset[entry] = sign * distance * step
        total = total + {1: 4.0 / 3.0, 2: -1.0 / 12.0}[distance] * function(
            point + offset.reshape(point.shape)
        )
    return total / step**2


@statement("muon.c7_stationary", paper=PAPER)
def stationary_path(
    *, claim: Callable[[float, int], float] = startup_denominator, coefficient: float = 0.5
) -> Verdict:
    """With a constant clipped gradient the direction has mean Q(G) + (rho^2 / 2) Laplace Q(G) + O(rho^4).

    The momentum is run with all its noises, as a matrix acting on them: its mean over the start-up sum must
    be the gradient, and its spread gives rho. The mean of Q is by quadrature, after correction too.
    """
    apply = ref.muon_map(2, 2)
    gradient = np.array([[0.8, -0.3], [0.2, 0.45]]) * 3.0
    curvature = laplacian(apply, gradient, 0.01)
    worst, cases = 0.0, 0
    for momentum, updates, scale in ((0.0, 1, 0.02), (0.5, 3, 0.03), (0.95, 60, 0.1)):
        weights, buffer = np.zeros(updates), np.zeros((2, 2))
        for step in range(updates):
            weights *= momentum
            weights[step] = 1.0
            buffer = momentum * buffer + gradient
        center = buffer / claim(momentum, updates)
        worst = max(worst, float(np.abs(center - gradient).max()) / 1e-12)
        rho = scale * float(np.linalg.norm(weights)) / claim(momentum, updates)
        plain = quadrature(apply, center, rho, 8) - apply(gradient)
        wider = quadrature(apply, center, math.sqrt(2.0) * rho, 8) - apply(gradient)
        predicted = coefficient * rho**2 * curvature
        size = float(np.linalg.norm(predicted))
        worst = max(worst, float(np.linalg.norm(plain - predicted)) / (5.0 * rho**2 * size))
        worst = max(worst, float(np.linalg.norm(2.0 * plain - wider)) / (5.0 * rho**2 * size))
        cases += 3
    return Verdict(
        judged(worst, 1.0),
        "The check computes the momentum from its weights, and the mean by quadrature. The deviation "
        "is the remainder, in units of 5 rho^2 times the predicted term.",
        cases,
        worst,
    )


def expansion_slope(point: np.ndarray, scales: tuple[float, float]) -> float:
    """Power of rho in ||E Q(X + rho U) - Q(X)||, kappa = q = 2: fine nodes along X, Hermite ones across."""
    apply = ref.muon_map(2, 2)
    basis = np.linalg.qr(np.column_stack([point.ravel(), np.eye(point.size)[:, 1:]]))[0]
    across, weights = np.polynomial.hermite_e.hermegauss(4)
    along, masses = np.polynomial.legendre.leggauss(600)
    axes = [8.0 * along] + [across] * (point.size - 1)
    laws = [8.0 * masses * np.exp(-32.0 * along**2) / math.sqrt(2.0 * math.pi)]
    laws += [weights / weights.sum()] * (point.size - 1)
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, point.size)
    law = np.prod(np.stack(np.meshgrid(*laws, indexing="ij"), axis=-1), axis=-1).ravel()
    steps = (grid @ basis.T).reshape(-1, *point.shape)
    sizes = [
        float(np.linalg.norm(np.tensordot(law, apply(point + rho * steps) - apply(point), axes=1)))
        for rho in scales
    ]
    return math.log(sizes[1] / sizes[0]) / math.log(scales[1] / scales[0])


@statement("muon.asmC2", paper=PAPER)
def regularity_is_needed(*, inside: float = 2.0, boundary: float = 1.0) -> Verdict:
    """Assumption C.2 keeps the expansion point off ||G||_F = 1: there the bias is of order rho, not rho^2."""
    on_boundary = np.diag([0.8, 0.6])
    found = (
        expansion_slope(0.5 * on_boundary, (1e-3, 1e-2)),
        expansion_slope(on_boundary, (1e-6, 1e-5)),
    )
    worst = max(abs(found[0] - inside), abs(found[1] - boundary))
    return Verdict(
        judged(worst, 5e-3),
        "The check computes the power of rho by quadrature at 0.5 and 1 times diag(.8, .6).",
        2,
        worst,
        f"The power is {found[0]:.4f} inside and {found[1]:.4f} on the boundary, so the assumption is "
        "needed.",
    )


FLIPS: dict[str, Callable[[], Verdict]] = {
    "muon.switch": lambda: smooth_but_not_twice(mapping=lambda matrix: ref.iterated(matrix, 2, 2)),
    "muon.asmC2": lambda: regularity_is_needed(inside=1.0),
    "muon.c7_stationary": lambda: stationary_path(claim=lambda m, t: startup_denominator(m, t + 1)),
}


NUDGES: dict[str, dict[str, Callable[[float], Verdict]]] = {
    "muon.switch": {"jump": nudge(smooth_but_not_twice, "measured")},
    "muon.asmC2": {
        "inside": nudge(regularity_is_needed, "inside"),
        "boundary": nudge(regularity_is_needed, "boundary"),
    },
    "muon.c7_stationary": {
        "denominator": nudge(stationary_path),
        "coefficient": nudge(stationary_path, "coefficient"),
    },
}
