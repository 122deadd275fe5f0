"""The DP-Muon paper: what a step of many clipped matrices costs, and Table 3."""

import math
from collections.abc import Callable

import numpy as np
from scipy import stats

from verification.harness.nudging import nudge
from verification.harness.verdict import Verdict, judged, judged_condition, statement
from verification.oracles import matrices as ref

PAPER = "muon"

BLOCKS = 49


def joined(sigmas: np.ndarray) -> float:
    """(sum sigma_W^-2)^(-1/2): the one Gaussian release that K of one batch amount to."""
    return float(np.sum(np.asarray(sigmas, dtype=float) ** -2.0) ** -0.5)


def divergence(sigma: float, q: float, eps: float) -> float:
    """P - e^eps Q over its best event, P = (1 - q) N(0) + q N(1), Q = N(0), standard deviation sigma."""
    if math.exp(eps) <= 1.0 - q:
        return 1.0 - math.exp(eps)
    cut = sigma**2 * math.log((math.exp(eps) - 1.0 + q) / q) + 0.5
    above, shifted = stats.norm.sf(cut / sigma), stats.norm.sf((cut - 1.0) / sigma)
    return float((1.0 - q - math.exp(eps)) * above + q * shifted)


def product_divergence(sigmas: tuple[float, float], q: float, eps: float, *, together: bool) -> float:
    """The same for two blocks on a plane grid: of one batch, or (wrongly) each of a batch of its own."""
    axes = [np.linspace(-9.0 * s - 1.0, 9.0 * s + 2.0, 2_401) for s in sigmas]
    base = [stats.norm.pdf(x, 0.0, s) for x, s in zip(axes, sigmas, strict=True)]
    moved = [stats.norm.pdf(x, 1.0, s) for x, s in zip(axes, sigmas, strict=True)]
    if together:
        mixture = (1.0 - q) * np.outer(*base) + q * np.outer(*moved)
    else:
        mixture = np.outer(*((1.0 - q) * b + q * m for b, m in zip(base, moved, strict=True)))
    excess = np.maximum(mixture - math.exp(eps) * np.outer(*base), 0.0)
    return float(excess.sum()) * float(np.prod([x[1] - x[0] for x in axes]))


@statement("muon.joint_sigma", paper=PAPER, expected="BEYOND THE PAPER")
def joint_multiplier(*, claim: Callable[[np.ndarray], float] = joined) -> Verdict:
    """Blocks of one batch with multipliers sigma_W are one subsampled release at (sum sigma_W^-2)^(-1/2).

    Whatever the clip norms; K equal ones make sigma / sqrt(K).
    """
    worst, cases = 0.0, 0
    for sigmas in ((1.0, 1.0), (0.8, 2.0), (3.0, 1.5)):
        for q in (0.05, 0.5, 1.0):
            for eps in (0.0, 0.5, 1.0):
                plane = product_divergence(sigmas, q, eps, together=True)
                worst = max(worst, abs(plane - divergence(claim(np.array(sigmas)), q, eps)))
                cases += 1
    worst = max(worst, abs(claim(np.full(BLOCKS, 2.3395)) - 2.3395 / 7.0))
    word = judged(worst, 1e-5, word="BEYOND THE PAPER")
    return Verdict(
        word,
        "The check computes the divergence of product distributions on a grid in the plane. "
        "Deviations are absolute.",
        cases,
        worst,
    )


def same_batch(q: float, eps: float) -> float:
    """A valid accountant of one step of two blocks at sigma = 1: joint."""
    return divergence(joined(np.ones(2)), q, eps)


def separate_batches(q: float, eps: float) -> float:
    """An accountant of another mechanism: each block with a batch of its own."""
    return product_divergence((1.0, 1.0), q, eps, together=False)


def sorted_into(outputs: np.ndarray, cells: int) -> np.ndarray:
    """A 0-1 matrix (cells, points): which cell of [-3, 3] each output of a direction falls into."""
    places = np.clip(((outputs + 3.0) / 6.0 * cells).astype(int), 0, cells - 1)
    return (np.arange(cells)[:, None] == places).astype(float)


def divergence_after_muon(q: float, eps: float, momentum: float) -> float:
    """Divergence of what Algorithm 1 does with the release of two 1 x 1 blocks of one batch, sigma = 1.

    Algorithm 1 moves each block by Q(beta M + G); the outputs are sorted into cells, which can only hide.
    """
    grid = np.linspace(-9.0, 10.0, 1_201)
    base, moved = stats.norm.pdf(grid), stats.norm.pdf(grid, 1.0)
    push = sorted_into(ref.muon_map(2, 5)((momentum + grid)[:, None, None])[:, 0, 0], 400)
    plain, shifted = push @ base, push @ moved
    mixture = (1.0 - q) * np.outer(plain, plain) + q * np.outer(shifted, shifted)
    excess = np.maximum(mixture - math.exp(eps) * np.outer(plain, plain), 0.0)
    return float(excess.sum()) * (grid[1] - grid[0]) ** 2


@statement("muon.thm2_1", paper=PAPER)
def theorem_2_1(*, accountant: Callable[[float, float], float] = same_batch) -> Verdict:
    """What certifies the same-batch transcript certifies DP-Muon.

    One step of two blocks: the accountant's delta covers the transcript, without a slack that a wrong one
    could hide in, and the weights that Algorithm 1 makes of it. One of two batches covers neither.
    """
    worst, missed, cases = 0.0, 0.0, 0
    for q in (0.01, 0.1):
        for eps in (0.5, 1.0, 2.0):
            truth = product_divergence((1.0, 1.0), q, eps, together=True)
            worst = max(worst, 1.0 - accountant(q, eps) / truth)
            missed = max(missed, 1.0 - separate_batches(q, eps) / truth)
            for momentum in (0.0, -0.4):
                worst = max(worst, divergence_after_muon(q, eps, momentum) / accountant(q, eps) - 1.0)
                cases += 1
            cases += 1
    return Verdict(
        judged(worst, 1e-3),
        "The check computes the divergences of the release and of the weights that are computed from it. "
        "The deviation is the relative shortfall of the accountant's delta.",
        cases,
        worst,
        f"Treating one batch as two would miss {missed:.0%} of delta in one step.",
    )


def replace_one_divergence(sigma: float, q: float, eps: float) -> float:
    """One step: (1 - q) N(0) + q N(+1) against (1 - q) N(0) + q N(-1)."""
    grid = np.linspace(-12.0 * sigma - 1.0, 12.0 * sigma + 1.0, 100_001)
    rest = (1.0 - q) * stats.norm.pdf(grid, 0.0, sigma)
    one, other = (rest + q * stats.norm.pdf(grid, side, sigma) for side in (1.0, -1.0))
    return float(np.trapezoid(np.maximum(one - math.exp(eps) * other, 0.0), grid))


def half_sigma(sigma: float, q: float, eps: float) -> float:
    """The paper's rule: the add/remove divergence at sigma / 2."""
    return divergence(0.5 * sigma, q, eps)


@statement("muon.replace_one", paper=PAPER, expected="CONDITIONAL")
def replace_one(*, claim: Callable[[float, float, float], float] = half_sigma) -> Verdict:
    """For replace-one adjacency use sigma / 2. Condition: equality holds without subsampling.

    With Poisson batches it is far from the true pair, on the safe side in every case tried, which proves
    nothing about compositions.
    """
    inside, outside, unsafe, cases = 0.0, 0.0, 0.0, 0
    for sigma in (0.7, 1.0, 2.0, 4.0):
        for eps in (0.1, 1.0, 3.0):
            inside = max(inside, abs(claim(sigma, 1.0, eps) - replace_one_divergence(sigma, 1.0, eps)))
            for q in (0.02, 0.2, 0.5):
                gap = claim(sigma, q, eps) - replace_one_divergence(sigma, q, eps)
                outside, unsafe = max(outside, gap), max(unsafe, -gap)
                cases += 1
            cases += 1
    return Verdict(
        judged_condition(max(inside, unsafe), outside, 1e-7),
        "The check computes one step of the true pair by quadrature. Deviations are absolute, in delta.",
        cases,
        inside,
        "The rule is exact without subsampling. With Poisson batches its delta in one step is too "
        f"large by up to {outside:.2g}.",
    )


def direction_from(release: np.ndarray, probes: np.ndarray, rho: float) -> np.ndarray:
    """DP-MuonBC's direction: of the released momentum, its scale and data-independent probes."""
    apply = ref.muon_map(2, 3)
    return 2.0 * apply(release) - 0.5 * (apply(release + rho * probes) + apply(release - rho * probes))


def reads_release(release: np.ndarray, clean: float) -> np.ndarray:
    """What the correction depends on: the release."""
    del clean
    return release


def reads_gradient(release: np.ndarray, clean: float) -> np.ndarray:
    """A correction that looked at the clipped gradient would not be post-processing."""
    return release + clean


def divergence_after_correction(
    inputs: Callable[[np.ndarray, float], np.ndarray], q: float, eps: float
) -> float:
    """Divergence of DP-MuonBC's direction of one 1 x 1 block, C / B = 0.2, sigma = 1, random probes.

    With probability q the example is in the batch and its clipped gradient is C / B; probes take the nodes of
    a Gauss-Hermite rule, and directions are sorted into cells.
    """
    unit = 0.2
    grid = np.linspace(-9.0, 10.0, 2_001)
    probes, weights = np.polynomial.hermite_e.hermegauss(5)
    weights = weights / weights.sum()

    def law(clean: float) -> np.ndarray:
        density = stats.norm.pdf(grid, clean) * (grid[1] - grid[0])
        read = inputs(unit * grid, unit * clean)[:, None]
        outputs = [direction_from(read[..., None], np.full((1, 1), z), unit)[:, 0, 0] for z in probes]
        return sum(w * (sorted_into(o, 600) @ density) for w, o in zip(weights, outputs, strict=True))

    absent, present = law(0.0), law(1.0)
    return float(np.maximum((1.0 - q) * absent + q * present - math.exp(eps) * absent, 0.0).sum())


@statement("muon.c8", paper=PAPER)
def correction_costs_nothing(*, inputs: Callable[[np.ndarray, float], np.ndarray] = reads_release) -> Verdict:
    """DP-MuonBC is post-processing of the release, whatever the probes: no eps has a larger delta after it.

    A correction that read the gradient besides would have one.
    """
    worst, reading, cases = -math.inf, -math.inf, 0
    for q in (0.05, 0.5, 1.0):
        for eps in (0.2, 0.5, 1.0):
            accounted = divergence(1.0, q, eps)
            worst = max(worst, divergence_after_correction(inputs, q, eps) / accounted - 1.0)
            reading = max(reading, divergence_after_correction(reads_gradient, q, eps) / accounted)
            cases += 1
    return Verdict(
        judged(worst, 1e-3),
        "The check compares the divergence of the direction with that of the release. The deviation "
        "is the relative excess.",
        cases,
        worst,
        f"A correction that used the gradient itself would have up to {reading:.1f} times the delta.",
    )


FLIPS: dict[str, Callable[[], Verdict]] = {
    "muon.joint_sigma": lambda: joint_multiplier(claim=lambda sigmas: float(np.min(sigmas))),
    "muon.thm2_1": lambda: theorem_2_1(accountant=separate_batches),
    "muon.replace_one": lambda: replace_one(claim=lambda s, q, eps: divergence(s / math.sqrt(2.0), q, eps)),
    "muon.c8": lambda: correction_costs_nothing(inputs=reads_gradient),
}

NUDGES: dict[str, dict[str, Callable[[float], Verdict]]] = {
    "muon.joint_sigma": {"multiplier": nudge(joint_multiplier)},
    "muon.thm2_1": {"delta": nudge(theorem_2_1, "accountant")},
    "muon.replace_one": {"delta": nudge(replace_one)},
}
