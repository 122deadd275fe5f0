import numpy as np
import pytest
import scipy

from dpmech.engines.convex_order.exponentials import build_lattice
from dpmech.engines.convex_order.mixture_ring import MixtureGram
from dpmech.exceptions import NumericalError


def whole_law(lattice, bins):
    """Every path round a ring of three bins: states (paths, bins) and masses, from the steps themselves."""
    (step,) = lattice.steps
    assert bins == 3
    masses = lattice.norm * step[:, :, None] * step[None, :, :] * step[:, None, :]
    return masses


@pytest.mark.parametrize("remove", [True, False])
def test_moments_of_the_lattice_are_those_of_the_gaussian(remove):
    gram = MixtureGram(3, 0.4, ((0.9, 0.6),), 0.0)
    lattice = build_lattice(gram, remove=remove, ripple=1e-6, outside=1e-9)
    masses = whole_law(lattice, 3)
    (nodes,) = lattice.nodes
    assert masses.sum() == pytest.approx(1.0, abs=1e-6)
    first, second = nodes[:, None, None], nodes[None, :, None]
    profile = gram.profile() - np.array([gram.white, 0.0])
    assert np.sum(masses * first * first) == pytest.approx(profile[0], rel=1e-5)
    assert np.sum(masses * first * second) == pytest.approx(profile[1], rel=1e-5)
    mass, mean, error = lattice.moments()
    assert mass == pytest.approx(masses.sum(), rel=1e-12)
    assert mean == pytest.approx(np.sum(masses * np.exp(first - 0.45)), rel=1e-12)
    assert error < 1e-12


@pytest.mark.parametrize("parts", [((0.9, 0.6),), ((0.5, 0.5), (1.5, 0.9))])
def test_its_factor_covers_laplace_transforms_of_wide_laws(parts):
    """E prod of Gaussian bumps in y has a closed form: the lattice is within its factor of it."""
    bins, white = 5, 0.3
    gram = MixtureGram(bins, white, parts, 0.0)
    index = np.arange(bins)
    distance = np.minimum(np.abs(index[:, None] - index), bins - np.abs(index[:, None] - index))
    covariance = gram.profile()[distance]
    rng = np.random.default_rng(4)
    for ripple in (0.3, 1e-2):
        lattice = build_lattice(gram, remove=False, ripple=ripple, outside=1e-5)
        assert 0.0 < lattice.log_factor <= ripple * 1.01
        x = lattice.sums() + 0.5 * gram.exponential
        step = lattice.steps[0] if len(parts) == 1 else np.kron(*lattice.steps)
        for _ in range(4):
            centres = rng.normal(size=bins)
            # bumps as narrow as the white part allows: exp(-(y - c)^2 / (2 s)), s small
            narrow = 0.01
            total = np.eye(x.size)
            for centre in centres:
                spread = white + narrow
                bump = np.sqrt(narrow / spread) * np.exp(-((x - centre) ** 2) / (2 * spread))
                total = total @ (bump[:, None] * step)
            found = lattice.norm * np.trace(total)
            full = covariance + narrow * np.eye(bins)
            exact = np.sqrt(narrow**bins / np.linalg.det(full)) * np.exp(
                -0.5 * centres @ np.linalg.solve(full, centres)
            )
            assert exact <= found * np.exp(lattice.log_factor) * (1 + 1e-9) + lattice.outside
            assert found <= exact * np.exp(lattice.log_factor) * (1 + 1e-9)


def test_the_window_is_charged():
    gram = MixtureGram(4, 0.4, ((0.9, 0.6),), 0.0)
    wide, narrow = (build_lattice(gram, remove=True, ripple=1e-3, outside=size) for size in (1e-12, 1e-3))
    assert 0.0 < wide.outside <= 1e-12
    assert 1e-6 < narrow.outside <= 1e-3
    lost = wide.moments()[1] - narrow.moments()[1]
    assert 0.0 < lost <= narrow.outside


def test_white_alone_is_one_state():
    lattice = build_lattice(MixtureGram(4, 0.4, (), 0.0), remove=True, ripple=1e-3, outside=1e-9)
    assert lattice.size == 1
    assert lattice.moments()[:2] == (1.0, 1.0)


def test_too_many_states_are_refused():
    with pytest.raises(NumericalError, match="states"):
        build_lattice(
            MixtureGram(400, 1e-6, ((1.0, 0.5), (1.0, 0.99)), 0.0), remove=True, ripple=1e-3, outside=1e-9
        )


def test_the_charge_for_leaving_is_raised_for_both_sums():
    """(1 - rho)^-b for the law of y, and (1 + rho)^b for the probability on the lattice."""
    coarse = build_lattice(MixtureGram(390, 0.3, ((0.7, 0.9),), 0.0), remove=False, ripple=0.6, outside=1e-3)
    assert coarse.log_factor > 0.1
    low, high = float(coarse.nodes[0][0]), float(coarse.nodes[0][-1])
    sd = coarse.gram.parts[0][0] ** 0.5
    leaving = 390 * float(scipy.special.ndtr(low / sd) + scipy.special.ndtr(-high / sd))
    assert coarse.outside >= leaving * np.exp(2.0 * coarse.log_factor)
    assert coarse.twice == pytest.approx(np.exp(2.0 * coarse.log_factor))
