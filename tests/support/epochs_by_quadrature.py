"""Delta of a few independent epochs of two bins, by quadrature: no lattice, no hull, no transform."""

import functools
import math

import numpy as np

REACH, POINTS = 9.0, 361


@functools.cache
def ratios(kappa):
    """Likelihood ratios of one epoch of two bins, increasing, with their probabilities under Q."""
    x = np.linspace(-REACH, REACH, POINTS)
    mass = np.exp(-0.5 * x * x)
    mass /= mass.sum()
    one = np.exp(kappa * x - 0.5 * kappa**2)
    values = (0.5 * (one[:, None] + one)).ravel()
    masses = (mass[:, None] * mass).ravel()
    order = np.argsort(values)
    return values[order], masses[order]


def excess(kappa, level):
    """E (r - level)_+ under Q for every level of an array."""
    values, masses = ratios(kappa)
    above = np.append(np.cumsum((masses * values)[::-1])[::-1], 0.0)
    counted = np.append(np.cumsum(masses[::-1])[::-1], 0.0)
    place = np.searchsorted(values, level, side="right")
    return above[place] - level * counted[place]


def two_epochs(kappas, eps, *, add):
    """H at e^eps of two epochs, kappa = norm / sigma of each; ADD by 1 - a + a times the other direction."""
    values, masses = ratios(kappas[0])
    a = math.exp(-eps if add else eps)
    found = float(masses @ (values * excess(kappas[1], a / values)))
    # H_a(Q || P) = 1 - a + a H_(1/a)(P || Q)
    return 1.0 - math.exp(eps) + math.exp(eps) * found if add else found


def delta(kappas, eps):
    """The larger direction."""
    return max(two_epochs(kappas, eps, add=add) for add in (False, True))
