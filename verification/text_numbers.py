"""Numbers that stand in the texts of the papers and not in a table, by dpmech's public functions.

Of privacy parameters the printed one is what the paper's accountant gives, ours what is certified.
"""

import functools
import math
import time

import numpy as np

import dpmech as dm
from dpmech.analysis import lambda_cgd as closed_forms
from dpmech.analysis.muon.newton_schulz import corrected_mean, heat_average, newton_schulz
from dpmech.analysis.noise_share import moments, signal_ceiling
from dpmech.analysis.sde import bounds
from dpmech.analysis.sde.dynamics import GradientNoise
from dpmech.numerics import FloatArray
from verification.harness.cells import Cell, Cells

# E2E as the noise-share paper has it.
_TABLES, _CLIP, _DELTA = 42_061, 0.1, 1e-5
# E2E and DART as DP-Muon has them: examples, steps, delta, sigma of each of 49 blocks.
_MUON = {"E2E": (42_043, 410, 8e-6, 2.3395), "DART": (60_591, 885, 1e-5, 2.3614)}
_MATRIX = np.array([[0.5, 0.2], [-0.1, 0.3]])


def lambda_cgd() -> Cells:
    """The noise of Figure 1, and how independent and diagonal noise stand to the bound of Theorem 4."""
    plan = (8, 8, 1)
    note = "lambda 0.5 and n = 8 give the printed numbers; at the printed lambda 0.9 a step has 1.81 or more"
    step = (1.0 + 0.5**2) * closed_forms.sensitivity(0.5, *plan) ** 2
    yield functools.partial(Cell, "Figure 1, variance of a step's noise", 1.67, step, "exact", note)
    mean = 1.0 - (closed_forms.rmse(0.5, *plan) / closed_forms.rmse(0.0, *plan)) ** 2
    yield functools.partial(Cell, "Figure 1, mean variance of sums, lower by", 0.44, mean, "exact", note)
    n = 3900
    independent, diagonal = (
        dm.rmse(one, dm.EveryStep()) for one in (dm.Identity(n), dm.Diagonal(_fourth_roots(n)))
    )
    least = math.sqrt((n + 1) * (2 * n + 1) / 6)
    yield functools.partial(
        Cell, "Theorem 4, independent over diagonal noise, n 3900", 1.06, independent / diagonal, "exact"
    )
    yield functools.partial(
        Cell, "Theorem 4, diagonal noise over the lower bound, n 3900", 1.15, diagonal / least, "exact"
    )
    small = 128
    own = dm.Diagonal(_fourth_roots(small))
    yield lambda: Cell(
        "conjecture after Theorem 4, diagonal noise over the least possible, n 128",
        1.0,
        dm.rmse(own, dm.EveryStep()) / dm.error_lower_bound(dm.EveryStep(), n=small),
        "proved: no matrix has less error (cgd.conj_diag)",
    )


def _fourth_roots(n: int) -> FloatArray:
    """(n - j)^(1/4), j = 0, ..., n - 1."""
    return np.sqrt(np.sqrt(np.arange(n, 0, -1, dtype=np.float64)))


def noise_share() -> Cells:
    """Phi of the runs, what bias correction does to a step, and correlated noise."""
    yield functools.partial(_phi, 3.0, 512, 150, 2.2e-8)
    yield lambda: Cell(
        "Phi, MNLI, eps 3, B 64", 5.62e-7, math.nan, "none: the paper does not print the number of steps"
    )
    exact = (
        ("DP-AdamBC's step over DP-Adam's at rho 0.955", 4.71, float(moments.step_correction(0.955)), ""),
        (
            "noise variance of Adam's first moment, beta1 0.9",
            0.0526,
            moments.average_variance(0.9, 10_000),
            "",
        ),
        ("kappa, lambda 0.9", 2.29, signal_ceiling.column_norm(0.9), ""),
        (
            "standard deviation of a step's noise over DP-SGD's, lambda 0.9",
            2.29,
            math.hypot(1.0, 0.9) * signal_ceiling.column_norm(0.9),
            "printed is that of z; a step adds z_t - lambda z_(t-1)",
        ),
        (
            "noise variance of a sum over that of DP-SGD, lambda 0.9, 10^6 steps",
            0.0526,
            signal_ceiling.prefix_variance_ratio(0.9, 10**6),
            "",
        ),
        (
            "the same at lambda 0.95",
            0.0256,
            signal_ceiling.prefix_variance_ratio(0.95, 10**6),
            "",
        ),
        (
            "the same at lambda 0.9 after the 120 steps of Table 3",
            0.0526,
            signal_ceiling.prefix_variance_ratio(0.9, 120),
            "printed is the limit of many steps",
        ),
        (
            "logged rho without any signal, B 512, step 150",
            1.001,
            1.0 / moments.median_factor(0.999, 150),
            "the log divides by the median of v_hat, which is below its mean",
        ),
    )
    for name, printed, ours, note in exact:
        yield functools.partial(Cell, name, printed, ours, "exact", note)


def _phi(eps: float, batch: int, steps: int, printed: float) -> Cell:
    sampling = dm.Poisson(batch / _TABLES)
    cal = dm.calibrate_sigma(dm.Identity(steps), eps, _DELTA, participation=sampling)
    return Cell(
        f"Phi, E2E, eps {eps:g}, B {batch}, {steps} steps",
        printed,
        cal.noise_variance(0, _CLIP, batch),
        "sigma a deterministic upper bound",
        "the printed one belongs to sigma 0.759 by Renyi accounting",
    )


def muon_sigmas() -> Cells:
    """The sigma of each of 49 blocks of one batch that eps = 8 needs."""
    for data, (examples, steps, delta, printed) in _MUON.items():
        yield functools.partial(_block_sigma, data, examples, steps, delta, printed)


def _block_sigma(data: str, examples: int, steps: int, delta: float, printed: float) -> Cell:
    sampling = dm.Poisson(1024 / examples)
    cal = dm.calibrate_sigma(dm.Identity(steps), 8.0, delta, participation=sampling)
    return Cell(
        f"{data} sigma of each of 49 blocks for eps 8",
        printed,
        cal.sigma * 7.0,
        str(cal.guarantee),
        "the printed one counts 49 blocks of a batch as 49 batches",
    )


def muon_bias() -> Cells:
    """Powers of rho with which the bias after Newton-Schulz grows, on one 2 x 2 matrix, by quadrature."""
    yield functools.partial(_bias_power, "DP-Muon", 2.0)
    yield functools.partial(_bias_power, "DP-MuonBC", 4.0)


def _bias_power(name: str, printed: float) -> Cell:
    output = functools.partial(newton_schulz, steps=2, degree=2)
    mean = heat_average if name == "DP-Muon" else corrected_mean
    scales = (0.02, 0.04)
    biases = [
        float(np.linalg.norm(mean(output, _MATRIX, scale, nodes=12) - output(_MATRIX))) for scale in scales
    ]
    power = math.log(biases[1] / biases[0]) / math.log(scales[1] / scales[0])
    return Cell(f"Theorem 4.1: bias of {name}, power of rho", printed, power, "quadrature, rho 0.02 to 0.04")


def sde() -> Cells:
    """Figure 1: powers of sigma and of 1/eps with which the floors of the loss grow."""
    for name, printed in (("DP-SGD", 2.0), ("DP-SignSGD", 1.0)):
        yield functools.partial(_power, f"{name}, power of sigma", printed, name, "sigma")
        yield functools.partial(_power, f"{name}, power of 1/eps from 2 to 0.5, IMDB", printed, name, "eps")


def _power(name: str, printed: float, optimizer: str, over: str) -> Cell:
    sampling = dm.Poisson(64 / 10_000)
    steps = 100 * (10_000 // 64)
    if over == "eps":
        sigmas = [
            dm.calibrate_sigma(dm.Identity(steps), eps, _DELTA, participation=sampling).sigma
            for eps in (2.0, 0.5)
        ]
        ratio, note = 4.0, "the accountant's sigma grows more slowly than 1 / eps here"
    else:
        sigmas, ratio, note = [1.0, 4.0], 4.0, ""
    floors = []
    for sigma in sigmas:
        noise = GradientNoise(
            dimension=10_000, clip_norm=0.5, batch_size=64, batch_noise=0.0, noise_multiplier=sigma
        )
        own = bounds.sgd_loss_bound if optimizer == "DP-SGD" else bounds.sign_loss_bound
        floors.append(own(noise, learning_rate=1e-3, pl_constant=0.1, smoothness=1.0).floor)
    power = math.log(floors[1] / floors[0]) / math.log(ratio)
    return Cell(name, printed, power, "floors of eq. 7 and 10", note)


def noise_costs(size: int = 1_000_000, steps: int = 24) -> Cells:
    """Table 5: the time of a step's noise over that of DP-SGD, with regeneration."""
    n = 3900
    rows: tuple[tuple[str, dm.Strategy, float], ...] = (
        ("DP-lambda-CGD", dm.LambdaCGD(n, 0.9), 2.0),
        ("BISR, p = 4", dm.InverseSquareRoot(n, 4), 4.0),
        ("BISR, p = 16", dm.InverseSquareRoot(n, 16), 16.0),
    )
    for name, strategy, printed in rows:
        yield functools.partial(_cost, name, strategy, printed, size, steps)


def _cost(name: str, strategy: dm.Strategy, printed: float, size: int, steps: int) -> Cell:
    return Cell(
        f"{name}, time of a step's noise over DP-SGD's",
        printed,
        _seconds(strategy, size, steps) / _seconds(dm.Identity(strategy.n), size, steps),
        f"measured here, {size} coordinates",
        "printed is the count of the paper: (p d + p d) / (d + d)",
    )


def _seconds(strategy: dm.Strategy, size: int, steps: int) -> float:
    """Median time of a step, after the bands are filled."""
    import torch

    from dpmech.optim import NoiseStream

    cal = dm.calibrate_sigma(strategy, 8.0, _DELTA, participation=dm.SingleParticipation())
    stream = NoiseStream(cal, [torch.zeros(size)], generator="philox")
    total = [torch.zeros(size)]
    found = []
    for _ in range(steps):
        start = time.perf_counter()
        stream.add_step(total)
        found.append(time.perf_counter() - start)
    stream.close()
    return float(np.median(found[steps // 2 :]))
