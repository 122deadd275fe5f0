"""The effect of bias correction on DP-Muon's output, as the noise in the momentum grows.

Run `python -m verification.figures.muon_bias [FILE]`. Left: a 2 x 2 momentum by quadrature, where the plain
direction is off by rho^2 and the corrected one by rho^4. Right: a 24 x 72 momentum of rank 3 by Monte Carlo,
at the norm of the paper's setting (0.1, where the denominator is idle) and at 3. Prints the two slopes, the
agreement with the leading terms, and the two errors at the paper's noise.
"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.progress import track

from dpmech.analysis.muon import newton_schulz
from dpmech.analysis.muon import newton_schulz as heat
from verification.figures.drawing import dots, in_style, line

SCALES = np.geomspace(0.01, 0.16, 9)
POINT = 3.0 * np.array([[0.8, -0.3], [0.2, 0.45]]) / np.linalg.norm([0.8, 0.3, 0.2, 0.45])
# ||noise||_F / ||H||_F in the right panel; the paper's own run has about 0.28 to 0.56.
RATIOS = np.array([0.1, 0.2, 0.28, 0.4, 0.56, 0.8, 1.2])


def small_map(matrix: np.ndarray) -> np.ndarray:
    """Two steps of degree 2."""
    return newton_schulz.newton_schulz(matrix, degree=2, steps=2)


def full_map(matrix: np.ndarray) -> np.ndarray:
    """Five steps of degree 2, as Algorithm 1 has them."""
    return newton_schulz.newton_schulz(matrix, degree=2, steps=5)


@dataclasses.dataclass(frozen=True, eq=False)
class Biases:
    """Norms of the bias of the plain and of the corrected direction, by noise.

    Args:
        scales: rho, shape (k,).
        plain: shape (k,).
        corrected: shape (k,).
        leading: what their leading terms predict, shape (2, k).
    """

    scales: np.ndarray
    plain: np.ndarray
    corrected: np.ndarray
    leading: np.ndarray

    def slopes(self) -> tuple[float, float]:
        """Of log bias in log rho, over the smaller half of the scales."""
        half = slice(0, len(self.scales) // 2 + 1)
        logs = np.log(self.scales[half])
        plain, corrected = (
            float(np.polyfit(logs, np.log(curve[half]), 1)[0]) for curve in (self.plain, self.corrected)
        )
        return plain, corrected

    def agreement(self) -> float:
        """Largest relative distance from the leading terms at the smallest scale."""
        biases = np.array([self.plain[0], self.corrected[0]])
        return float(np.max(np.abs(biases / self.leading[:, 0] - 1.0)))


def exact_biases(scales: np.ndarray, nodes: int = 12) -> Biases:
    """The 2 x 2 case by quadrature, and the leading terms by differences."""
    target = small_map(POINT)
    plain = [np.linalg.norm(heat.heat_average(small_map, POINT, r, nodes=nodes) - target) for r in scales]
    corrected = [
        np.linalg.norm(heat.corrected_mean(small_map, POINT, r, nodes=nodes) - target) for r in scales
    ]
    first = heat.heat_coefficients(1)[1] * np.linalg.norm(heat.laplacian(small_map, POINT, step=0.02))
    second = heat.corrected_coefficients(2)[2] * np.linalg.norm(
        heat.laplacian(small_map, POINT, step=0.05, power=2)
    )
    leading = np.array([abs(first) * scales**2, abs(second) * scales**4])
    return Biases(scales, np.array(plain), np.array(corrected), leading)


def sampled_errors(norm: float, ratios: np.ndarray, draws: int, seed: int = 0) -> np.ndarray:
    """Relative bias of both directions on 24 x 72, shape (2, k): ||E O - Q(H)|| / ||Q(H)||."""
    rng = np.random.default_rng(seed)
    left, right = (np.linalg.qr(rng.standard_normal((size, 3)))[0] for size in (24, 72))
    signal = (left * np.array([1.0, 0.7, 0.4])) @ right.T
    signal *= norm / np.linalg.norm(signal)
    target = full_map(signal)
    errors = np.zeros((2, len(ratios)))
    for index, ratio in enumerate(ratios):
        rho = ratio * norm / np.sqrt(signal.size)
        totals = np.zeros((2, *signal.shape))
        for _ in range(draws):
            noise, probe = rho * rng.standard_normal((2, *signal.shape))
            # The mirror image of the noise halves the variance of the mean and changes nothing else.
            noisy = np.stack([signal + noise, signal - noise])
            output = full_map(np.concatenate([noisy, noisy + probe, noisy - probe]))
            plain = output[:2].mean(axis=0)
            totals[0] += plain / draws
            totals[1] += (2.0 * plain - output[2:].mean(axis=0)) / draws
        errors[:, index] = np.linalg.norm(totals - target, axis=(1, 2)) / np.linalg.norm(target)
    return errors


@in_style
def draw(exact: Biases, sampled: dict[float, np.ndarray], path: str) -> None:
    """Two panels."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4))
    left, right = figure.subplots(1, 2)
    for index, (curve, leading, label) in enumerate(
        (
            (exact.plain, exact.leading[0], "DP-Muon"),
            (exact.corrected, exact.leading[1], "DP-MuonBC"),
        )
    ):
        dots(left, index, exact.scales, curve, label)
        line(left, index, exact.scales, leading)
    left.set_xscale("log")
    left.set_yscale("log")
    left.set_xlabel("noise of one entry, rho")
    left.set_ylabel("norm of the bias (lines: leading terms)")
    left.set_title("2 x 2, quadrature")
    left.legend()
    for index, (norm, errors) in enumerate(sampled.items()):
        for style, name, row in (("-", "DP-Muon", 0), ("--", "DP-MuonBC", 1)):
            dots(right, index, RATIOS, errors[row], f"{name}, ||H|| = {norm:g}", style)
    right.set_xlabel("||noise|| / ||H||")
    right.set_ylabel("relative bias of the mean output")
    right.set_title("24 x 72, rank 3, q = 5")
    right.legend()
    figure.savefig(path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compute, draw, print the agreement; 1 if a slope is off by more than 0.1 or a leading term by 2 %."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", default="muon_bias.png", help="where to draw")
    parser.add_argument("--draws", type=int, default=400, help="noises a point in the right panel")
    options = parser.parse_args(arguments)
    exact = exact_biases(SCALES)
    norms = track((0.1, 3.0), "simulating", console=Console(stderr=True), transient=True)
    sampled = {norm: sampled_errors(norm, RATIOS, options.draws) for norm in norms}
    draw(exact, sampled, options.file)
    plain, corrected = exact.slopes()
    sys.stdout.write(
        f"2 x 2: bias grows as rho^{plain:.3f}, corrected as rho^{corrected:.3f}; "
        f"leading terms met to {exact.agreement():.2%}\n"
    )
    for norm, errors in sampled.items():
        for index in (2, 4):
            sys.stdout.write(
                f"24 x 72, ||H|| = {norm:g}, noise {RATIOS[index]:g} of it: "
                f"relative bias {errors[0, index]:.3f}, corrected {errors[1, index]:.3f}\n"
            )
    return int(abs(plain - 2.0) > 0.1 or abs(corrected - 4.0) > 0.1 or exact.agreement() > 0.02)


if __name__ == "__main__":
    sys.exit(main())
