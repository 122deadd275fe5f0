"""The spectral denoising paper: the shrinker, the denoiser, and what is claimed of it."""

import math
from collections.abc import Callable

import numpy as np

from verification.harness.nudging import nudge
from verification.harness.verdict import (
    Verdict,
    judged,
    judged_arithmetic,
    judged_condition,
    judged_erratum,
    statement,
)
from verification.oracles import matrices as ref

PAPER = "spectral"


def noise_edge(sigma: float, rows: int, columns: int) -> float:
    """The noise edge sigma (sqrt m + sqrt n)."""
    return sigma * (math.sqrt(rows) + math.sqrt(columns))


def printed_shrinker(observed: float, sigma: float, rows: int, columns: int) -> float:
    """Eq. 9: the inverted value times both cosines at it; 0 up to the edge."""
    if observed <= noise_edge(sigma, rows, columns):
        return 0.0
    value = ref.inverse_inflation(observed, sigma, rows, columns)
    signal = max(value**4 - rows * columns * sigma**4, 0.0)
    return value * math.sqrt(
        signal / (value**4 + rows * value**2 * sigma**2) * signal / (value**4 + columns * value**2 * sigma**2)
    )


def closed_shrinker(observed: float, sigma: float, rows: int, columns: int) -> float:
    """sqrt((y^2 - s^2 (m + n))^2 - 4 m n s^4) / y."""
    moved = observed**2 - sigma**2 * (rows + columns)
    return math.sqrt(max(moved**2 - 4.0 * rows * columns * sigma**4, 0.0)) / observed


@statement("rmt.eq8_9", paper=PAPER)
def equations_8_9(*, claim: Callable[[float, float, int, int], float] = printed_shrinker) -> Verdict:
    """The shrunk values of eq. 9, and that no other coefficients of the same vectors do better.

    With given vectors the best coefficient is u^T X v: its mean over draws is eta. Eq. 9 is identically
    sqrt((y^2 - s^2 (m + n))^2 - 4 m n s^4) / y. dpmech relies on it in
    `dpmech.analysis.spectral`. Margins are in units of each part's tolerance.
    """
    rng = np.random.default_rng(8)
    worst, cases = 0.0, 0
    for _ in range(1_000):
        m, n = (int(size) for size in rng.integers(1, 1000, size=2))
        sigma = 10.0 ** rng.uniform(-3, 2)
        observed = noise_edge(sigma, m, n) * (1.0 + 10.0 ** rng.uniform(-2, 1))
        result = claim(observed, sigma, m, n)
        worst = max(worst, abs(result - closed_shrinker(observed, sigma, m, n)) / observed / 1e-9)
        worst = max(worst, -result / 1e-12, (result - observed) / observed / 1e-12)
        worst = max(worst, abs(claim(2.0 * observed, 2.0 * sigma, m, n) - 2.0 * result) / observed / 1e-9)
        worst = max(worst, abs(claim(observed, 0.0, m, n) / observed - 1.0) / 1e-9)
        worst = max(worst, claim(noise_edge(sigma, m, n), sigma, m, n) / observed / 1e-12)
        cases += 1
    for rows, columns in ((100, 400), (300, 300)):
        values = np.array([4.0, 3.0, 2.0]) * (rows * columns) ** 0.25
        best, shrunk, draws = np.zeros(3), np.zeros(3), 60
        for left, sizes, right, noisy in ref.noisy_draws(values, rows, columns, 1.0, draws=draws, seed=89):
            u, y, v = np.linalg.svd(noisy, full_matrices=False)
            best += np.einsum("ia,ir,r,jr,aj->a", u[:, :3], left, sizes, right, v[:3], optimize=True)
            shrunk += [claim(float(top), 1.0, rows, columns) for top in y[:3]]
            cases += 1
        worst = max(worst, float(np.max(np.abs(best - shrunk) / (draws * values))) / 0.03)
    return Verdict(
        judged(worst, 1.0),
        "The check compares the estimate with the closed form to 1e-9, and with the best coefficients "
        "to 3 %. Deviations are in units of these tolerances.",
        cases,
        worst,
    )


def estimate_of_rank(noisy: np.ndarray, sigma: float, rank: int) -> np.ndarray:
    """Eq. 8 as printed: the sum runs to the rank of the signal."""
    left, observed, right = np.linalg.svd(noisy, full_matrices=False)
    values = [closed_shrinker(float(y), sigma, *noisy.shape) for y in observed[:rank]]
    return (left[:, :rank] * values) @ right[:rank]


def estimate_above_edge(noisy: np.ndarray, sigma: float, rank: int) -> np.ndarray:
    """The same, over every value above the edge, whatever the rank."""
    del rank
    observed = np.linalg.svd(noisy, compute_uv=False)
    return estimate_of_rank(noisy, sigma, int(np.sum(observed > noise_edge(sigma, *noisy.shape))))


@statement("rmt.eq8_rank", paper=PAPER, expected="WORDING")
def sum_to_the_rank(*, claim: Callable[[np.ndarray, float, int], np.ndarray] = estimate_of_rank) -> Verdict:
    """Eq. 8 sums to the rank of the signal, and the text says it needs the noisy matrix and sigma alone.

    Two signals of rank 1 and 2 can have one noisy matrix; an estimator must then return one result.
    """
    noisy, sigma = np.diag([3.0, 2.0]), 0.5

    def spread(estimator: Callable[[np.ndarray, float, int], np.ndarray]) -> float:
        return float(np.linalg.norm(estimator(noisy, sigma, 1) - estimator(noisy, sigma, 2)))

    printed = spread(claim)
    return Verdict(
        judged_erratum(printed, spread(estimate_above_edge), 1e-12, word="WORDING"),
        "The check evaluates one noisy matrix at two ranks. Deviations are absolute.",
        2,
        printed,
        "For diag(3, 2) at sigma 0.5 the estimate differs between rank 1 and rank 2. The sum over all "
        "values above the edge does not require the rank.",
    )


def random_orthogonal(size: int, rng: np.random.Generator) -> np.ndarray:
    """A Haar rotation, up to signs."""
    return np.linalg.qr(rng.standard_normal((size, size)))[0]


@statement("rmt.eq10", paper=PAPER)
def equation_10(*, claim: Callable[[np.ndarray, float, float], np.ndarray] = ref.denoised) -> Verdict:
    """Denoise keeps the norm, passes weak layers bit for bit, and commutes with rotations and transposition.

    For kappa > 1, as the paper has it. At kappa = 1 and a top value equal to the edge it divides 0 by 0.
    dpmech relies on it in `dpmech.analysis.spectral`.
    """
    rng = np.random.default_rng(10)
    worst, cases = 0.0, 0
    for _ in range(200):
        m, n = (int(size) for size in rng.integers(2, 30, size=2))
        sigma = 10.0 ** rng.uniform(-2, 1)
        signal = np.outer(rng.standard_normal(m), rng.standard_normal(n)) * sigma * rng.uniform(0.0, 3.0)
        noisy = signal + sigma * rng.standard_normal((m, n))
        result, size = claim(noisy, sigma, 1.02), float(np.linalg.norm(noisy))
        worst = max(worst, abs(float(np.linalg.norm(result)) / size - 1.0))
        observed = np.linalg.svd(noisy, compute_uv=False)
        if observed[0] < 1.02 * noise_edge(sigma, m, n):
            worst = max(worst, float(not np.array_equal(result, noisy)))
        else:
            rank = int(np.sum(np.linalg.svd(result, compute_uv=False) > 1e-9 * size))
            worst = max(worst, abs(rank - int(np.sum(observed > noise_edge(sigma, m, n)))))
        left, right = random_orthogonal(m, rng), random_orthogonal(n, rng)
        turned = left.T @ claim(left @ noisy @ right, sigma, 1.02) @ right.T
        worst = max(worst, float(np.linalg.norm(turned - result)) / size)
        worst = max(worst, float(np.linalg.norm(claim(noisy.T, sigma, 1.02).T - result)) / size)
        worst = max(worst, float(np.linalg.norm(claim(noisy, 0.0, 1.02) - noisy)) / size)
        cases += 1
    at_edge = claim(np.diag([2.0, 0.0]), 1.0 / math.sqrt(2.0), 1.0 - 1e-15)
    return Verdict(
        judged(worst, 1e-9),
        "The check tests identities on random matrices at kappa = 1.02. Deviations are relative.",
        cases,
        worst,
        "The parameter kappa must exceed 1, as it does in the paper. Otherwise "
        + ("the result is 0 / 0" if not np.all(np.isfinite(at_edge)) else "the result is finite")
        + " for diag(2, 0) at sigma 1 / sqrt 2.",
    )


def pure_noise_ratios(rows: int, columns: int, draws: int, seed: int) -> np.ndarray:
    """Largest singular value over the edge, of pure noise."""
    rng = np.random.default_rng(seed)
    tops = np.array([ref.top_value(rng.standard_normal((rows, columns))) for _ in range(draws)])
    return tops / noise_edge(1.0, rows, columns)


@statement("rmt.eq10_edge", paper=PAPER, expected="CONDITIONAL")
def edge_is_the_maximum(*, claim: float = 1.0) -> Verdict:
    """App. E.2 calls the edge the maximal singular value of a pure-noise matrix. It is, in the limit.

    Margins: the mean of the top value from `claim` edges, and of one draw in seven at 16 x 768.
    """
    large, small = pure_noise_ratios(1000, 2000, 6, 103), pure_noise_ratios(16, 768, 3_000, 102)
    exceeding = float(np.mean(small > claim))
    alarm = float(np.mean(small > 1.02))
    inside = abs(float(large.mean()) / claim - 1.0)
    return Verdict(
        judged_condition(inside, exceeding, 0.006),
        "The check draws matrices of pure noise. At 1000 x 2000, the deviation is the relative difference "
        "of the mean from the edge; at 16 x 768, it is the fraction above the edge.",
        large.size + small.size,
        inside,
        f"The statement requires large matrices: at 1000 x 2000 the mean is {large.mean():.4f} of the "
        f"edge. At 16 x 768, {exceeding:.1%} of the draws are above the edge, {alarm:.1%} are above "
        f"1.02 times the edge, and the mean of all draws is {small.mean():.3f} times the edge.",
    )


def improvements(
    multiple: float, draws: int, seed: int, transform: Callable[..., np.ndarray] = ref.denoised
) -> np.ndarray:
    """Change of the cosine with the signal, 16 x 768, four values near `multiple` thresholds."""
    rows, columns = 16, 768
    values = multiple * np.array([1.0, 0.99, 0.98, 0.97]) * (rows * columns) ** 0.25
    changes = []
    for left, sizes, right, noisy in ref.noisy_draws(values, rows, columns, 1.0, draws=draws, seed=seed):
        signal = (left * sizes) @ right.T
        changes.append(ref.cosine(transform(noisy, 1.0, 1.02), signal) - ref.cosine(noisy, signal))
    return np.array(changes)


@statement("rmt.eq10_positive", paper=PAPER, expected="UNVERIFIABLE")
def consistently_positive(*, transform: Callable[..., np.ndarray] = ref.denoised) -> Verdict:
    """In the authors' runs the improvement of the cosine is positive throughout; it is for clear signals."""
    weak, strong = improvements(1.1, 300, 11, transform), improvements(3.0, 60, 30, transform)
    return Verdict(
        judged_arithmetic(-float(strong.min()), -0.01),
        "The check draws random 16 x 768 matrices with signals near 1.1 and 3 times the threshold. The "
        "deviation is the decrease of the cosine at 3 times the threshold.",
        len(weak) + len(strong),
        -float(strong.min()),
        "The statement is a measurement on RoBERTa. At 3 thresholds the change has mean "
        f"{strong.mean():+.3f} and least value {strong.min():+.3f}. At 1.1 thresholds the cosine can "
        f"decrease, as the paper states: the mean is {weak.mean():+.4f} and the worst value "
        f"{weak.min():+.3f}.",
    )


def update_of_algorithm_1(gradients: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Sum the clipped gradients, add noise, divide, denoise (C = 1, sigma = 0.1)."""
    norms = np.linalg.norm(gradients, axis=(1, 2), keepdims=True)
    total = (gradients / np.maximum(1.0, norms)).sum(axis=0)
    return ref.denoised((total + 0.1 * noise) / len(gradients), 0.1 / len(gradients), 1.02)


def update_per_sample(gradients: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """What "operates on each individual gradient sample" would be: denoise each, then sum."""
    each = [update_of_algorithm_1(gradient[None], noise) for gradient in gradients]
    return np.mean(each, axis=0)


@statement("rmt.conclusion", paper=PAPER, expected="WORDING")
def operates_on_each_sample(
    *, method: Callable[[np.ndarray, np.ndarray], np.ndarray] = update_of_algorithm_1
) -> Verdict:
    """The conclusion says the method operates on each individual gradient sample.

    Then two batches with one sum could give two updates. Algorithm 1 sees their noisy sum alone.
    """
    rng = np.random.default_rng(5)
    noise, middle, apart = rng.standard_normal((3, 4, 5))
    middle, apart = 0.3 * middle / np.linalg.norm(middle), 0.3 * apart / np.linalg.norm(apart)
    one, other = np.array([middle, middle]), np.array([middle + apart, middle - apart])

    def reaction(update: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> float:
        return float(np.linalg.norm(update(one, noise) - update(other, noise)))

    # The printed reading predicts a reaction of the size that denoising each sample has.
    printed = abs(reaction(method) - reaction(update_per_sample))
    return Verdict(
        judged_erratum(printed, reaction(update_of_algorithm_1), 1e-9, word="WORDING"),
        "The check compares two batches with equal sums. The deviation is the change of the update.",
        2,
        printed,
        "Equal sums give equal updates, whereas the update of a per-sample method would change by "
        f"{reaction(update_per_sample):.3f}. The method acts on the noisy sum of the batch and uses no "
        "single sample.",
    )


FLIPS: dict[str, Callable[[], Verdict]] = {
    "rmt.eq8_9": lambda: equations_8_9(claim=lambda y, s, m, n: math.sqrt(max(y**2 - s**2 * (m + n), 0.0))),
    "rmt.eq8_rank": lambda: sum_to_the_rank(claim=estimate_above_edge),
    "rmt.eq10": lambda: equation_10(claim=lambda g, s, k: ref.denoised(g, s, k) * (1.0 + 1e-6)),
    "rmt.eq10_edge": lambda: edge_is_the_maximum(claim=1.05),
    "rmt.eq10_positive": lambda: consistently_positive(transform=lambda g, *_: g),
    "rmt.conclusion": lambda: operates_on_each_sample(method=update_per_sample),
}
NUDGES = {
    "rmt.eq8_9": {"coefficient": nudge(equations_8_9)},
    "rmt.eq10": {"denoised": nudge(equation_10)},
    "rmt.eq10_edge": {"edge": nudge(edge_is_the_maximum)},
}
