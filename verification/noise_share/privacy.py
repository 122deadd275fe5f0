"""The noise-share paper, privacy of anti-correlated noise n_t = z_t - lambda z_(t-1)."""

import math
from collections.abc import Callable

import numpy as np
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant
from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant
from scipy import integrate, stats

from verification.harness.verdict import Verdict, judged, judged_erratum, statement
from verification.oracles import linear as ref
from verification.oracles import noise_share as oracle

PAPER = "noise_share"
LAMBDAS = (0.0, 0.3, 0.5, 0.9, 0.95, 0.99)


def column_norm(lam: float, steps: int) -> float:
    """The paper's kappa."""
    return math.sqrt((1 - lam ** (2 * steps)) / (1 - lam**2))


@statement("ov.kappa", paper=PAPER)
def kappa(*, claim: Callable[[float, int], float] = column_norm) -> Verdict:
    """Kappa = max_t ||(L^-1)[:, t]|| = sqrt((1 - lam^(2T)) / (1 - lam^2)) for L bidiagonal (1, -lam)."""
    worst, cases = 0.0, 0
    for lam in LAMBDAS:
        for steps in (1, 2, 4, 8, 50, 200):
            inverse = np.linalg.inv(oracle.bidiagonal(lam, steps))
            worst = max(worst, abs(float(np.linalg.norm(inverse, axis=0).max()) / claim(lam, steps) - 1.0))
            cases += 1
    for lam, steps, printed in ((0.9, 8, 2.0707), (0.9, 2000, 2.2942), (0.5, 4, 1.1524)):
        worst = max(worst, abs(claim(lam, steps) - printed) - 5e-5)
        cases += 1
    return Verdict(judged(worst, 1e-9), "dense inverse, relative", cases, worst)


def effective_multiplier(nu: float, clip: float, lam: float, steps: int) -> float:
    """The paper's single noise multiplier of the whole release."""
    return nu / (clip * column_norm(lam, steps))


def divergence(shift: np.ndarray, covariance: np.ndarray) -> float:
    """Renyi divergence over alpha of two Gaussians of one covariance."""
    return 0.5 * float(shift @ np.linalg.solve(covariance, shift))


@statement("ov.thm7.i", paper=PAPER)
def theorem_7_single(*, claim: Callable[[float, float, float, int], float] = effective_multiplier) -> Verdict:
    """The release over T steps is one Gaussian mechanism of multiplier nu / (C kappa)."""
    worst, cases = 0.0, 0
    for lam in (0.0, 0.5, 0.9):
        for steps in (1, 3, 12):
            noising = oracle.bidiagonal(lam, steps)
            covariance = 1.7**2 * noising @ noising.T
            shifts = 0.6 * np.eye(steps)
            largest = max(divergence(shift, covariance) for shift in shifts)
            worst = max(worst, abs(2 * largest * claim(1.7, 0.6, lam, steps) ** 2 - 1.0) / 1e-9)
            cases += 1
    # Adaptive stream: each sum, and the sign of the changed example, depend on the outputs so far.
    rng = np.random.default_rng(8)
    draws, lam, nu = 200_000, 0.7, 1.5
    noise = rng.normal(size=(draws, 3)) @ oracle.bidiagonal(lam, 3).T * nu
    first = noise[:, 0]
    change = np.zeros((draws, 3))
    change[:, 1] = np.sign(np.sin(3.0 * first))
    white = np.linalg.solve(oracle.bidiagonal(lam, 3), noise.T).T / nu
    moved = np.linalg.solve(oracle.bidiagonal(lam, 3), (noise + change).T).T / nu
    loss = 0.5 * np.sum(moved**2 - white**2, axis=1)
    expected = 0.5 * (1 + lam**2) / nu**2
    error = math.sqrt(2 * expected / draws)
    worst = max(worst, abs(float(loss.mean()) - expected) / (oracle.STANDARD_ERRORS * error))
    worst = max(
        worst,
        abs(float(loss.var()) / (2 * expected) - 1.0) / (oracle.STANDARD_ERRORS * math.sqrt(2.0 / draws)),
    )
    return Verdict(
        judged(worst, 1.0),
        "dense covariance (1e-9); privacy loss of an adaptive stream by Monte Carlo (6.5 SE)",
        cases + 2,
        worst,
    )


def renyi(alpha: float, shift: np.ndarray, covariance: np.ndarray) -> float:
    """The paper's Lemma 8."""
    return alpha * divergence(shift, covariance)


@statement("ov.lem8", paper=PAPER)
def lemma_8(*, claim: Callable[[float, np.ndarray, np.ndarray], float] = renyi) -> Verdict:
    """D_alpha(N(s, S) || N(s', S)) = alpha / 2 (s - s')^T S^-1 (s - s')."""
    worst, cases = 0.0, 0
    for alpha in (2.0, 3.0, 8.0):
        for shift in (0.5, 1.3):

            def integrand(x: float, alpha: float = alpha, shift: float = shift) -> float:
                exponent = -alpha * (x - shift) ** 2 / 2 - (1 - alpha) * x**2 / 2
                return math.exp(exponent) / math.sqrt(2 * math.pi)

            centre = alpha * shift
            value, _ = integrate.quad(integrand, centre - 12, centre + 12, epsabs=0, epsrel=1e-13)
            exact = math.log(value) / (alpha - 1)
            found = claim(alpha, np.array([shift]), np.eye(1))
            worst = max(worst, abs(found / exact - 1.0))
            cases += 1
        # Two steps of correlated noise, on a grid.
        noising = 1.5 * oracle.bidiagonal(0.9, 2)
        covariance = noising @ noising.T
        shift2 = np.array([0.7, -0.2])
        axis = np.linspace(-40, 40, 1201)
        points = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
        precision = np.linalg.inv(covariance)
        moved = points - shift2
        exponent = -alpha * np.sum(moved @ precision * moved, axis=1) / 2
        exponent -= (1 - alpha) * np.sum(points @ precision * points, axis=1) / 2
        mass = float(np.sum(np.exp(exponent))) * (axis[1] - axis[0]) ** 2
        mass /= 2 * math.pi * math.sqrt(float(np.linalg.det(covariance)))
        worst = max(worst, abs(claim(alpha, shift2, covariance) / (math.log(mass) / (alpha - 1)) - 1.0))
        cases += 1
    return Verdict(judged(worst, 1e-9), "quadrature in one and two dimensions, relative", cases, worst)


def calibrated(sigma: float, clip: float, lam: float, steps: int) -> float:
    """The paper's scale of z."""
    return sigma * clip * column_norm(lam, steps)


@statement("ov.thm7.ii", paper=PAPER)
def theorem_7_calibration(*, claim: Callable[[float, float, float, int], float] = calibrated) -> Verdict:
    """With nu = sigma C kappa the whole release has the Renyi curve of one Gaussian, whatever T is."""
    worst, cases = 0.0, 0
    for lam in LAMBDAS:
        for steps in (1, 5, 60):
            noising = claim(0.8, 2.5, lam, steps) * oracle.bidiagonal(lam, steps)
            covariance = noising @ noising.T
            largest = max(divergence(shift, covariance) for shift in 2.5 * np.eye(steps))
            worst = max(worst, abs(largest * 2 * 0.8**2 - 1.0))
            cases += 1
    return Verdict(judged(worst, 1e-9), "dense covariance, relative", cases, worst)


@statement("ov.thm7.iii", paper=PAPER)
def theorem_7_reduction(*, claim: Callable[[float, float, float, int], float] = calibrated) -> Verdict:
    """At lambda = 0 the mechanism is DP-SGD: kappa = 1, independent noise of scale sigma C."""
    worst, cases = 0.0, 0
    for steps in (1, 2, 30):
        noising = claim(0.8, 2.5, 0.0, steps) * oracle.bidiagonal(0.0, steps)
        worst = max(worst, float(np.abs(noising @ noising.T - 4.0 * np.eye(steps)).max()))
        cases += 1
    return Verdict(judged(worst, 1e-12), "dense covariance, absolute", cases, worst)


def naive_shortfall(lam: float) -> float:
    """The paper: by how much sqrt(1 + lam^2), the column norm of L itself, under-noises in the limit."""
    return 1 / math.sqrt((1 - lam**2) * (1 + lam**2))


@statement("ov.thm7.iv", paper=PAPER)
def theorem_7_naive(*, claim: Callable[[float], float] = naive_shortfall) -> Verdict:
    """Scaling by sqrt(1 + lam^2) under-noises: at lambda = 0.9 the divergence is 2.9 times."""
    lam, steps, sigma = 0.9, 300, 0.6378173828
    noising = sigma * math.sqrt(1 + lam**2) * oracle.bidiagonal(lam, steps)
    true = max(divergence(shift, noising @ noising.T) for shift in np.eye(steps))
    inflation = true * 2 * sigma**2
    worst = max(abs(claim(lam) ** 2 / inflation - 1.0), abs(claim(lam) - 1.70523) - 5e-6)
    # What a claimed eps = 7.4355 becomes: the sigma that the oracle asks for at eps = 14.381.
    actual = sigma / claim(lam)
    worst = max(worst, abs(ref.gaussian_sigma(14.381, 1e-5) / actual - 1.0) - 5e-5)
    return Verdict(
        judged(worst, 1e-9),
        "dense covariance, relative; eps by a 40-digit Gaussian",
        3,
        worst,
        f"at lambda = 0.9 the divergence is {inflation:.4f} times the claimed one: eps 7.4355 is 14.381",
    )


def mixture_delta(eps: float, means: np.ndarray, chances: np.ndarray) -> float:
    """The delta at eps of a Gaussian mixture against a standard Gaussian in two dimensions, on a grid."""
    axis = np.linspace(-9, 11, 1601)
    cell = (axis[1] - axis[0]) ** 2
    density = [[stats.norm.pdf(axis, loc=value) for value in mean] for mean in means]
    mixture = sum(chance * np.outer(*pair) for chance, pair in zip(chances, density, strict=True))
    base = np.outer(stats.norm.pdf(axis), stats.norm.pdf(axis))
    remove = float(np.sum(np.maximum(mixture - math.exp(eps) * base, 0.0))) * cell
    add = float(np.sum(np.maximum(base - math.exp(eps) * mixture, 0.0))) * cell
    return max(remove, add)


def correlated_delta(eps: float, rate: float) -> float:
    """Two steps at lambda = 0.9, sigma = 1, every step sampled with probability `rate`."""
    inverse = np.linalg.inv(oracle.bidiagonal(0.9, 2)) / column_norm(0.9, 2)
    hits = np.array([(0, 0), (0, 1), (1, 0), (1, 1)], dtype=float)
    chances = np.prod(np.where(hits > 0, rate, 1 - rate), axis=1)
    return mixture_delta(eps, hits @ inverse.T, chances)


def no_amplification(eps: float, rate: float) -> float:
    """The paper: sampling no longer helps, the curve is that of one unsampled participation."""
    del rate
    return float(stats.norm.cdf(0.5 - eps) - math.exp(eps) * stats.norm.cdf(-0.5 - eps))


@statement("ov.thm7.amp", paper=PAPER, expected="COUNTEREXAMPLE")
def theorem_7_amplification(*, claim: Callable[[float, float], float] = no_amplification) -> Verdict:
    """With correlated noise, Poisson sampling amplifies no longer."""
    printed, corrected, notes, cases = 0.0, 0.0, [], 0
    for rate, expected in ((0.5, 0.1756), (0.1, 6.1e-3), (0.01, 5.4e-7)):
        true = correlated_delta(0.5, rate)
        printed = max(printed, claim(0.5, rate) / true - 1.0)
        corrected = max(corrected, abs(true / expected - 1.0))
        notes.append(f"{true:.2g} at q = {rate}")
        cases += 1
    # What is right: the unsampled single participation is a safe bound at small rates.
    corrected = max(corrected, correlated_delta(0.5, 0.1) / no_amplification(0.5, 1.0) - 1.0)
    return Verdict(
        judged_erratum(printed, corrected, 0.02, word="COUNTEREXAMPLE"),
        "quadrature in two dimensions; claimed delta over true delta",
        cases + 1,
        printed,
        f"two steps, lambda = 0.9, eps = 0.5: claimed {no_amplification(0.5, 1.0):.3g}, true "
        + ", ".join(notes)
        + "; only the proof by independence fails",
    )


def leftmost_sensitivity(lam: float, steps: int, gap: int, count: int) -> float:
    """Columns 1, 1 + b, 1 + 2b, ... of L^-1, summed."""
    total = np.zeros(steps)
    for start in range(0, min(count * gap, steps), gap):
        total[start:] += lam ** np.arange(steps - start)
    return float(np.linalg.norm(total))


@statement("ov.thm7.multi", paper=PAPER)
def theorem_7_many(*, claim: Callable[[float, int, int, int], float] = leftmost_sensitivity) -> Verdict:
    """Several participations b apart: the norm of the sum of columns 1, 1 + b, ...; not sqrt(k) kappa."""
    worst, cases = 0.0, 0
    for lam, steps, gap, count, printed in (
        (0.9, 12, 4, 3, 4.92640),
        (0.5, 12, 4, 3, 2.08275),
        (0.9, 10, 3, 2, 3.82107),
        (0.95, 12, 1, 3, 7.63802),
        (0.7, 11, 2, 6, None),
    ):
        brute = ref.brute_sensitivity(np.linalg.inv(oracle.bidiagonal(lam, steps)), gap, count)
        worst = max(worst, abs(claim(lam, steps, gap, count) / brute - 1.0))
        if printed is not None:
            worst = max(worst, abs(brute - printed) - 5e-6)
        cases += 1
    tempting = math.sqrt(3) * column_norm(0.9, 12)
    # The paper's own runs sample by Poisson: how often is a record used at least twice?
    rate = 256 / oracle.CORPUS
    twice = float(stats.binom.sf(1, 120, rate))
    worst = max(worst, abs(twice - 0.166) - 5e-4)
    return Verdict(
        judged(worst, 1e-9),
        "brute force over all sets, relative",
        cases + 1,
        worst,
        f"sqrt(k) kappa = {tempting:.2f} would under-state 4.93; in the paper's runs a record is used "
        f"twice or more with probability {twice:.3f}, so single participation does not describe them",
    )


def paper_sigma(eps: float, delta: float, rate: float, steps: int) -> float:
    """Opacus' search: halve [0, 20] until the eps of its upper end is within 0.01 below the target."""
    low, high, reached = 0.0, 20.0, 0.0
    while eps - reached > 0.01:
        middle = (low + high) / 2
        found = oracle.rdp_epsilon(middle, rate, steps, delta, oracle.OPACUS_ORDERS)
        if found < eps:
            high, reached = middle, found
        else:
            low = middle
    return high


def prv_upper(sigma: float, rate: float, steps: int) -> float:
    """The upper end that the PRV accountant reports."""
    accountant = PRVAccountant(
        prvs=[PoissonSubsampledGaussianMechanism(sampling_probability=rate, noise_multiplier=sigma)],
        max_self_compositions=[steps],
        eps_error=0.01,
        delta_error=1e-8,
    )
    return float(accountant.compute_epsilon(delta=1e-5, num_self_compositions=[steps])[2])


@statement("ov.num.eps_cert", paper=PAPER, full=True)
def certified_values(*, claim: tuple[float, float] = (7.446, 6.404)) -> Verdict:
    """The two certified eps: 7.446 for one unsampled Gaussian, 6.404 for 120 steps at q = 256 / 42061."""
    worst, cases, tight = 0.0, 0, []
    for (rate, steps), printed in zip(((1.0, 1), (256 / oracle.CORPUS, 120)), claim, strict=True):
        sigma = paper_sigma(8.0, 1e-5, rate, steps)
        worst = max(worst, abs(prv_upper(sigma, rate, steps) - printed))
        accountant = PLDAccountant(value_discretization_interval=1e-4)
        event = GaussianDpEvent(sigma)
        accountant.compose(PoissonSampledDpEvent(rate, event) if rate < 1.0 else event, steps)
        tight.append(float(accountant.get_epsilon(1e-5)))
        cases += 1
    return Verdict(
        judged(worst, 0.002),
        "sigma by Opacus' Renyi search at eps = 8, then the PRV upper end; absolute",
        cases,
        worst,
        f"both are Renyi-calibrated to 8; tight values {tight[0]:.3f} and {tight[1]:.3f}: the smaller one is "
        "not a smaller budget but Renyi's larger slack under sampling",
    )


FLIPS: dict[str, Callable[[], Verdict]] = {
    "ov.kappa": lambda: kappa(claim=lambda lam, _: math.sqrt(1 + lam**2)),
    "ov.thm7.i": lambda: theorem_7_single(
        claim=lambda nu, clip, lam, steps: effective_multiplier(nu, clip, lam, steps + 1)
    ),
    "ov.lem8": lambda: lemma_8(claim=lambda alpha, *rest: renyi(alpha - 1, *rest)),
    "ov.thm7.ii": lambda: theorem_7_calibration(
        claim=lambda sigma, clip, lam, steps: math.sqrt(steps) * calibrated(sigma, clip, lam, steps)
    ),
    "ov.thm7.iii": lambda: theorem_7_reduction(claim=lambda sigma, clip, *_: sigma / clip),
    "ov.thm7.iv": lambda: theorem_7_naive(claim=lambda lam: math.sqrt(1 + lam**2)),
    "ov.thm7.amp": lambda: theorem_7_amplification(claim=correlated_delta),
    "ov.thm7.multi": lambda: theorem_7_many(
        claim=lambda lam, steps, _, count: math.sqrt(count) * column_norm(lam, steps)
    ),
    "ov.num.eps_cert": lambda: certified_values(claim=(8.0, 8.0)),
}
