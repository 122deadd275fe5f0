"""The SDE paper: definitions, the privacy rule it uses, normalised vectors, weak approximation."""

import math
from collections.abc import Callable

import numpy as np
import sympy as sp
from scipy import special

from verification.harness.nudging import nudge
from verification.harness.verdict import Verdict, judged, judged_condition, judged_proof, statement
from verification.oracles import sde as oracle
from verification.sde.certified import ROWS, SAMPLERS, lower_bound

PAPER = "sde"


def signed(gradient: np.ndarray, adam_eps: float) -> np.ndarray:
    """What DP-Adam without averaging is said to be: the sign, whatever Adam's own eps."""
    del adam_eps
    return np.sign(gradient)


def adam_update(gradient: np.ndarray, adam_eps: float, step: int = 3) -> np.ndarray:
    """Eq. 208 with both averages switched off, after `step` equal gradients."""
    first, second = np.zeros_like(gradient), np.zeros_like(gradient)
    beta = 0.0
    for _ in range(step):
        first = beta * first + (1.0 - beta) * gradient
        second = beta * second + (1.0 - beta) * gradient**2
    corrected = 1.0 - beta**step
    return (first / corrected) / (np.sqrt(second / corrected) + adam_eps)


@statement("sde.def3.3", paper=PAPER, expected="CONDITIONAL")
def definition_3_3(*, claim: Callable[[np.ndarray, float], np.ndarray] = signed) -> Verdict:
    """DP-Adam with both averages off is DP-SignSGD: for Adam's eps at 0, or far below the gradients."""
    gradients = np.random.default_rng(33).standard_normal((200, 7))
    inside = float(np.abs(claim(gradients, 0.0) - adam_update(gradients, 0.0)).max())
    small = 1e-8 * gradients
    outside = float(np.abs(claim(small, 1e-8) - adam_update(small, 1e-8)).max())
    return Verdict(
        judged_condition(inside, outside, 1e-12),
        "The check compares the updates. Deviations are absolute.",
        2 * gradients.size,
        inside,
        "The reduction requires Adam's eps = 0: at eps = 1e-8 and gradients of 1e-8 the updates "
        f"differ by {outside:.2f}. The definition does not state sampling and adjacency, which "
        "determine the meaning of the noise multiplier.",
    )


def unit_constant_rule(sigma: float, delta: float, probability: float, steps: int) -> float:
    """Eps by the rule of Theorem 3.1 with c_2 = 1, as the paper uses it."""
    return probability * math.sqrt(steps * math.log(1.0 / delta)) / sigma


@statement("sde.thm3.1", paper=PAPER, expected="CONDITIONAL")
def theorem_3_1(*, claim: Callable[[float, float, float, int], float] = unit_constant_rule) -> Verdict:
    """The rule certifies eps for some constants; with c_2 = 1 only at small eps."""
    inside = max(
        oracle.gaussian_epsilon(sigma, 1e-5) / claim(sigma, 1e-5, 1, 1) - 1.0 for sigma in (100.0, 33.0, 10.5)
    )
    full_batch = oracle.gaussian_epsilon(0.5, 1e-5) / claim(0.5, 1e-5, 1, 1)
    # StackOverflow at sigma = 0.5, by a certified lower bound.
    run, sigma = ROWS[2][:2]
    sampled = min(lower_bound(ROWS[2], sampler) for sampler in SAMPLERS)
    sampled /= claim(sigma, run.delta, run.batch / run.size, run.steps)
    return Verdict(
        judged_condition(inside, min(full_batch, sampled) - 1.0, 1e-9),
        "The check computes the exact eps of one release, and a lower bound on the eps of a sampled "
        "run. The deviation is this eps divided by that of the rule, minus 1.",
        5,
        inside,
        "With c_2 = 1 the rule requires small eps. One full-batch release at sigma = 0.5 costs "
        f"{full_batch:.2f} times the eps of the rule, and StackOverflow at sigma = 0.5 more than "
        f"{sampled:.1f} times.",
    )


def printed_side(value: float, tolerance: float) -> float:
    """Eq. 14 ends in "< 1 - eps": how far Kummer's function is above."""
    return value - (1.0 - tolerance)


def right_side(value: float, tolerance: float) -> float:
    """Put right, "> 1 - eps": how far it is below."""
    return (1.0 - tolerance) - value


@statement("sde.lemA1", paper=PAPER, expected="CONFIRMED, MISPRINT IN THE PROOF")
def lemma_a1(
    *,
    claim: Callable[[float, float, int, int], float] = oracle.confluent_mean,
    line: Callable[[float, float], float] = printed_side,
) -> Verdict:
    """Mean of a Gaussian vector over a power of its length; mu / (sigma sqrt d) for power 1 and large d."""
    holds, cases = 0.0, 0
    for dimension in (2, 5, 50, 1000):
        for norm, scale in ((0.3, 1.0), (2.0, 0.7), (5.0, 1.0)):
            for power in (1, 2):
                truth = oracle.gaussian_mean_direction(norm, scale, dimension, power)
                holds = max(holds, abs(claim(norm, scale, dimension, power) / truth - 1.0))
                cases += 1
    for dimension, norm in ((100, 3.0), (1000, 10.0), (10_000, 10.0)):
        z = norm**2 / 2
        error = (norm / math.sqrt(dimension)) / claim(norm, 1.0, dimension, 1) - 1.0
        predicted = 1 / (4 * dimension) + z / (dimension + 2)
        holds = max(holds, abs(error / predicted - 1.0) - 0.2)
        cases += 1

    def beyond(side: Callable[[float, float], float]) -> float:
        settings = ((100, 0.5), (10_000, 50.0))
        # The tolerance of the lemma exceeds z / (d + 2).
        return max(side(float(special.hyp1f1(0.5, d / 2 + 1, -z)), 1.05 * z / (d + 2)) for d, z in settings)

    return Verdict(
        judged_proof(holds, beyond(line), beyond(right_side), 1e-9),
        "The check uses quadrature, with relative deviations. It also tests the error of the limit to "
        "within 20 %, and both sides of eq. 14.",
        cases + 4,
        holds,
        "Kummer's function is above 1 - eps if z / (d + 2) < eps, as the proof requires.",
    )


@statement("sde.lemA2", paper=PAPER)
def lemma_a2(*, claim: Callable[[float], float] = oracle.student_factor) -> Verdict:
    """The factor K(nu) for a multivariate Student t, with an error of order 1/d + z/d."""
    printed = {1: 0.79788, 1.5: 0.85410, 2: 0.88623, 3: 0.92132, 5: 0.95153, 10: 0.97535, 100: 0.99750}
    worst = max(abs(claim(freedom) - value) / 5e-6 for freedom, value in printed.items())
    cases = len(printed)
    for freedom in (1.0, 3.0, 30.0):
        for dimension, norm in ((1000, 2.0), (10_000, 5.0)):
            truth = oracle.student_mean_direction(norm, 1.0, dimension, freedom)
            z = (freedom + 1.0) / freedom * norm**2 / 2
            allowed = 1 / (4 * dimension) + z / (dimension + 2)
            worst = max(worst, abs(claim(freedom) * norm / math.sqrt(dimension) / truth - 1.0) / allowed)
            cases += 1
    return Verdict(
        judged(worst, 1.2),
        "The check uses quadrature. The deviation is relative to the predicted error.",
        cases,
        worst,
    )


def increments(drift: sp.Expr, slope: sp.Expr, noise: sp.Expr, rate: sp.Symbol) -> tuple[sp.Expr, sp.Expr]:
    """Lemma B.3 in one dimension: the first two moments of an increment, to second order."""
    return drift * rate + sp.Rational(1, 2) * drift * slope * rate**2, (drift**2 + noise**2) * rate**2


@statement("sde.lemB3", paper=PAPER)
def lemma_b3(*, claim: Callable[..., tuple[sp.Expr, sp.Expr]] = increments) -> Verdict:
    """Increments of dX = b dt + sqrt(eta) s dW, against two processes with known moments."""
    x, rate, a, s = sp.symbols("x eta a s", positive=True)
    # Ornstein-Uhlenbeck with noise s, and a geometric process with noise s x.
    decay = sp.exp(-a * rate)
    linear = (x * (decay - 1), x**2 * (decay - 1) ** 2 + s**2 * (1 - decay**2) * rate / (2 * a), None)
    square = x**2 * sp.exp((-2 * a + rate * s**2) * rate)
    cube = x**3 * sp.exp((-3 * a + 3 * rate * s**2) * rate)
    third = cube - 3 * x * square + 3 * x**2 * x * decay - x**3
    geometric = (x * (decay - 1), square - 2 * x**2 * decay + x**2, third)
    worst, cases = 0.0, 0
    for (mean, second, third_moment), noise in ((linear, s), (geometric, s * x)):
        differences = [
            exact - printed
            for exact, printed in zip((mean, second), claim(-a * x, -a, noise, rate), strict=True)
        ]
        if third_moment is not None:
            differences.append(third_moment)
        for difference in differences:
            series = sp.series(difference, rate, 0, 3).removeO()
            point = {x: sp.Rational(7, 5), a: sp.Rational(3, 2), s: sp.Rational(4, 5)}
            terms = sp.Poly(sp.expand(series), rate).all_coeffs() if series != 0 else [sp.Integer(0)]
            worst = max(worst, *(abs(float(sp.simplify(term).subs(point))) for term in terms))
            cases += 1
    return Verdict(
        judged(worst, 1e-12), "The check computes the coefficients up to eta^2 symbolically.", cases, worst
    )


def measured_order(noise: float) -> float:
    """The order to which an Ornstein-Uhlenbeck process of variance `noise` follows the iterates of 1.5."""
    errors = []
    for rate in (4e-3, 2e-3, 1e-3):
        steps = round(2.0 / rate)
        mean, square = oracle.sgd_walk(1.0, 1.5, rate, 1.0, steps)
        time = rate * np.arange(steps + 1)
        flow = np.exp(-time)
        spread = 0.5 * rate * noise * (1.0 - flow**2)
        errors.append(max(float(np.abs(mean - flow).max()), float(np.abs(square - flow**2 - spread).max())))
    return float(np.log2(np.array(errors[:-1]) / np.array(errors[1:])).min())


@statement("sde.thmB4", paper=PAPER)
def theorem_b4(*, claim: float = 1.0) -> Verdict:
    """The equation follows the iterates weakly to order `claim`: E x and E x^2 up to a fixed time."""
    order = measured_order(1.5)
    return Verdict(
        judged(claim - order, 0.004),
        "The check measures the order. The deviation is the claimed order minus the measured one.",
        3,
        claim - order,
        f"Order 1 does not test the covariance: without any noise the order is {measured_order(0.0):.3f}.",
    )


FLIPS: dict[str, Callable[[], Verdict]] = {
    "sde.def3.3": lambda: definition_3_3(claim=lambda gradient, _: gradient),
    "sde.thm3.1": lambda: theorem_3_1(claim=lambda *arguments: 0.5 * unit_constant_rule(*arguments)),
    "sde.lemA1": lambda: lemma_a1(line=right_side),
    "sde.lemA2": lambda: lemma_a2(claim=lambda freedom: oracle.student_factor(freedom + 0.1)),
    "sde.lemB3": lambda: lemma_b3(
        claim=lambda drift, slope, noise, rate: increments(drift, 2 * slope, noise, rate)
    ),
    "sde.thmB4": lambda: theorem_b4(claim=2.0),
}
NUDGES = {
    "sde.def3.3": {"update": nudge(definition_3_3)},
    "sde.thm3.1": {"eps": nudge(theorem_3_1)},
    "sde.lemA1": {"mean": nudge(lemma_a1)},
    "sde.lemA2": {"K": nudge(lemma_a2)},
    "sde.lemB3": {"moments": nudge(lemma_b3)},
    "sde.thmB4": {"order": nudge(theorem_b4)},
}
