"""The proved bound on the rounding of losses, densities and weights, against 50 digits at draws.

Every function is computed anew from the floats that were drawn, from its definition and not by the code.
"""

import math

import mpmath
import numpy as np
import pytest

import dpmech as dm
from dpmech.engines.gaussian_mixture.chain_mixtures import ChainAdd, ChainRemove, CopiesPart
from dpmech.engines.gaussian_mixture.chains import chain_gram
from dpmech.engines.gaussian_mixture.dense_gram import DenseGram
from dpmech.engines.gaussian_mixture.gram import CirculantGram
from dpmech.engines.gaussian_mixture.mixtures import AddProposal, RemoveProposal
from dpmech.engines.gaussian_mixture.points import LiftedGroup, PointGroup
from dpmech.engines.gaussian_mixture.proposal import mean_rounding
from dpmech.engines.gaussian_mixture.streams import Stage, stage_seed
from dpmech.engines.gaussian_mixture.tuples import FreeTuples

CASES = [(1, 0.2, 0.5), (8, 0.05, 0.3), (8, 2.0, 4.0), (40, 9.0, 20.0), (6, 80.0, 60.0)]
DRAWS = 64
mpf = mpmath.mpf


def gram_of(bins, size):
    index = np.arange(bins)
    return DenseGram(size * 0.6 ** np.abs(index[:, None] - index[None, :]))


def circulant(bins, size):
    index = np.arange(bins)
    return CirculantGram(size * 0.5 ** np.minimum(index, bins - index))


class Watched:
    """What a proposal was asked to weigh: y, the tuples of its parts, losses and log densities."""

    def __init__(self, proposal, monkeypatch):
        self.values, self.tuples, self.densities = [], [], []
        name = "_densities" if isinstance(proposal, RemoveProposal) else "losses"
        true = getattr(type(proposal), name)

        def spy(own, values, *rest):
            copied = values.copy()
            found = true(own, values, *rest)
            self.values.append(copied)
            if rest:
                self.tuples.append([one.indices.copy() for one in rest[1]])
            self.densities.append(found)
            return found

        with monkeypatch.context() as patch:
            patch.setattr(type(proposal), name, spy)
            self.payoffs, self.parts = proposal.block(stage_seed((1, 2, 3, 4), Stage.REMOVE_MAIN, 0), DRAWS)


def mean_of_exp(exponents):
    return mpmath.log(mpmath.fsum(mpmath.exp(one) for one in exponents) / len(exponents))


def exact_loss(gram, row):
    return mean_of_exp([y - k / 2 for y, k in zip(row, map(mpf, gram.diagonal.tolist()), strict=True)])


def matrix(gram):
    return [[mpf(float(x)) for x in row] for row in gram.columns(np.arange(gram.bins))]


def gaussian(tilt, row, entries):
    """Log density of N(K v, K) against N(0, K)."""
    image = [mpmath.fsum(k * v for k, v in zip(line, tilt, strict=True)) for line in entries]
    straight = mpmath.fsum(v * y for v, y in zip(tilt, row, strict=True))
    return straight - mpmath.fsum(v * m for v, m in zip(tilt, image, strict=True)) / 2


def exact_densities(proposal, row, tuples):
    """Log D of the parts of a REMOVE mixture at one draw, but for tilts of all bins, by their definitions."""
    gram, entries, bins = proposal.gram, matrix(proposal.gram), proposal.gram.bins
    half = [entries[i][i] / 2 for i in range(bins)]
    found = [exact_loss(gram, row)]

    def powers(scale):
        return mean_of_exp([scale * (y - h) for y, h in zip(row, half, strict=True)])

    def log_table(law):
        """Log B(s, q)."""
        s, q = mpf(law.scale), law.order
        fields = [(s * s - s) * h for h in half]
        if q == 1:
            return mean_of_exp(fields)
        theta = s * s * q / 2
        means = [mean_of_exp([f + theta * k for f, k in zip(fields, line, strict=True)]) for line in entries]
        return mean_of_exp([f + (q - 1) * m for f, m in zip(fields, means, strict=True)])

    def star(law, indices):
        s, q = mpf(law.scale), law.order
        others = [
            mpmath.fsum(entries[i][j] for place, j in enumerate(indices) if place != own)
            for own, i in enumerate(indices)
        ]
        pairs = s * s * mpmath.fsum(others) / 2
        centred = mean_of_exp([s * s * q / 2 * one for one in others])
        return q * powers(s) - log_table(law) - (pairs - centred)

    def free(law, indices):
        tilt = [mpf(law.lift) / bins + int(np.sum(indices == i)) for i in range(bins)]
        own = mpmath.fsum(
            row[i] - half[i] for i in indices
        )  # the kernel that completes a draw of another part
        return gaussian(tilt, row, entries) - own + law.order * found[0]

    found.append(powers(mpf(proposal.scaled.scale)) - log_table(proposal.scaled))
    for part, indices in zip(proposal.tuple_parts, tuples, strict=True):
        law = part.law
        found.append(free(law, indices) if isinstance(law, FreeTuples) else star(law, indices))
    for group in proposal.groups:
        if isinstance(group, PointGroup):
            tilts = group.tilts
            if group.orbit:
                tilts = [np.roll(tilts[0], shift) for shift in range(bins)]
            every = [[mpf(float(v)) for v in tilt] for tilt in tilts]
        else:
            assert isinstance(group, LiftedGroup)
            lift, peak = mpf(group.lift) / bins, mpf(group.peak)
            every = [[lift + (peak if i == j else 0) for j in range(bins)] for i in range(bins)]
        found.append(mean_of_exp([gaussian(tilt, row, entries) for tilt in every]))
    return found


def floats(row):
    return [mpf(float(one)) for one in row]


@pytest.mark.parametrize("make", [gram_of, circulant])
@pytest.mark.parametrize(("bins", "size", "eps"), CASES)
def test_losses_and_densities_of_remove(make, bins, size, eps, monkeypatch):
    proposal = RemoveProposal.at(make(bins, size), eps)
    seen = Watched(proposal, monkeypatch)
    loss, part = proposal.loss_rounding.error, proposal.part_rounding
    assert 0.0 < loss < 1e-11
    assert 0.0 < part.error < 1e-7
    values = np.concatenate(seen.values)
    tuples = [np.concatenate(one) for one in zip(*seen.tuples, strict=True)]
    densities = np.concatenate(seen.densities)
    assert len(values) >= 5
    worst = 0.0
    with mpmath.workdps(50):
        for number in range(min(len(values), 3)):
            row = floats(values[number])
            exact = exact_densities(proposal, row, [one[number] for one in tuples])
            off = [abs(mpf(float(a)) - b) for a, b in zip(densities[number], exact, strict=False)]
            assert len(exact) >= len(proposal.names) - len(proposal.slots.collective)
            assert off[0] <= loss
            assert max(off) <= part.error
            assert all(abs(one) <= part.size for one in exact)
            worst = max(worst, float(max(off)))
    assert worst > 0.0


@pytest.mark.parametrize("below", [False, True])
@pytest.mark.parametrize("kind", [RemoveProposal, AddProposal])
@pytest.mark.parametrize(("bins", "size", "eps"), CASES)
def test_weights_are_on_the_safe_side(kind, bins, size, eps, below, monkeypatch):
    """For upper bounds, raised by what they may be off, they are above the exact ones, else below."""
    gram = gram_of(bins, size)
    proposal = kind.at(gram, eps).rounded_to(below=below)
    seen = Watched(proposal, monkeypatch)
    logs = proposal.log_weights(seen.payoffs, seen.parts)
    rows, places = [], []
    if kind is RemoveProposal:
        rows = list(np.concatenate(seen.values))
        places = list(np.flatnonzero(seen.payoffs > -np.inf))
    else:
        every = np.concatenate(seen.values)
        places = list(np.flatnonzero(seen.payoffs > -np.inf))
        rows = [every[place] for place in places]
    off, checked = mpf(proposal.weight_rounding), 0
    with mpmath.workdps(50):
        entries = matrix(gram)
        for number, (place, drawn) in enumerate(zip(places, rows, strict=True)):
            if number == 3:
                break
            row = floats(drawn)
            loss = exact_loss(gram, row)
            if kind is RemoveProposal:
                payoff = mpmath.exp(loss) - mpmath.exp(mpf(eps))
                tuples = [np.concatenate(one)[number] for one in zip(*seen.tuples, strict=True)]
                exact = exact_densities(proposal, row, tuples)
            else:
                payoff = 1 - mpmath.exp(mpf(eps) + loss)
                direction = floats(proposal.point.direction)
                exact = [
                    gaussian([-mpf(float(t)) * w for w in direction], row, entries) for t in proposal.tilts
                ]
            # Tilts of all bins as they were found: their bound has a test of its own.
            parts = [*exact, *floats(seen.parts[place][len(exact) :])]
            mixed = mpmath.fsum(
                mpf(float(a)) * mpmath.exp(d) for a, d in zip(proposal.weights, parts, strict=True)
            )
            weight, computed = max(payoff, mpf(0)) / mixed, mpmath.exp(mpf(float(logs[place])))
            if below:
                assert computed * mpmath.exp(-off) <= weight
            else:
                assert weight <= computed * mpmath.exp(off)
            checked += 1
    assert checked >= 1


def test_payoffs_at_the_boundary_are_moved_to_the_safe_side():
    """A difference that nearly vanishes is taken at a loss moved by a proved amount."""
    upper = RemoveProposal.at(gram_of(8, 2.0), 4.0)
    lower = upper.rounded_to(below=True)
    assert upper.payoff_side == -lower.payoff_side == upper.loss_rounding.error > 0.0
    values = np.full((1, 8), 4.0) + 0.5 * upper.gram.diagonal  # L = eps but for rounding
    payoffs = {}
    for one in (upper, lower):
        payoffs[one.below], densities = np.full(1, -np.inf), np.zeros((1, len(one.names)))
        tuples = [_some_tuples(one, part.law.order) for part in one.tuple_parts]
        one._weigh(values.copy(), tuples, payoffs[one.below], densities)
    assert payoffs[False][0] > -np.inf
    assert payoffs[True][0] == -np.inf


def _some_tuples(proposal, order):
    from dpmech.engines.gaussian_mixture.mixtures import TuplesOfSamples

    law = next(part.law for part in proposal.tuple_parts if part.law.order == order)
    return TuplesOfSamples(law, np.ones(1, dtype=bool), np.zeros((1, order)), np.zeros((1, order), dtype=int))


@pytest.mark.parametrize("correlated", [False, True])
def test_tilts_of_all_bins(correlated):
    """Densities by the tables at exact coordinates; a draw beside an edge has none."""
    index = np.arange(12)
    entries = 0.8 * (0.15 ** np.abs(index[:, None] - index[None, :]) if correlated else np.eye(12))
    gram = DenseGram(entries) if correlated else CirculantGram(entries[0])
    proposal = RemoveProposal.at(gram, 1.0)
    parts = proposal.collective
    assert parts is not None
    assert 0.0 < parts.rounding.error < 1e-8
    values = gram.sample(np.random.default_rng(2), 24) + 0.4
    found = parts.log_densities(values.copy())
    assert np.isfinite(found).all()
    factor = np.linalg.cholesky(entries)
    with mpmath.workdps(50):
        for draw in range(3):
            solved = []
            for i in range(12):
                rest = mpmath.fsum(mpf(float(factor[i, j])) * solved[j] for j in range(i))
                solved.append((mpf(float(values[draw, i])) - rest) / mpf(float(factor[i, i])))
            for number, part in enumerate(parts.parts):
                sites = []
                for i in range(12):
                    mean = mpf(float(values[draw, i])) - mpf(float(factor[i, i])) * solved[i]
                    ahead = mpf(float(part.ahead[i]))
                    level = mean - mpf(float(entries[i, i])) / 2 + ahead * mpf(float(factor[i, i]))
                    row = int(mpmath.nint((level - mpf(part.tilt.lowest)) / mpf("0.05")))
                    cell = int(mpmath.floor((solved[i] - ahead + 9) * 10))
                    row = min(max(row, 0), len(part.tilt.log_density) - 1)
                    table = mpf(float(part.tilt.log_density[row, min(max(cell, 0), 229)]))
                    sites.append(table + ahead * (solved[i] - ahead / 2))
                total = mpmath.fsum(sites)
                if part.peak:
                    width, peak = parts.band.shape[0] - 1, mpf(part.peak)
                    terms = []
                    for i in range(12):
                        near = range(max(0, i - width), i + 1)
                        along = mpmath.fsum(mpf(float(factor[i, j])) * solved[j] for j in near)
                        square = mpmath.fsum(mpf(float(factor[i, j])) ** 2 for j in near)
                        window = range(max(0, i - width), min(12, i + width + 1))
                        terms.append(
                            peak * along - peak**2 * square / 2 - mpmath.fsum(sites[j] for j in window)
                        )
                    total += mean_of_exp(terms)
                assert abs(mpf(float(found[draw, number])) - total) <= parts.rounding.error
    # The same draw, moved so that one coordinate stands on an edge between two cells.
    normals = gram.factor.whiten(values[:1].copy())
    for part_number, part in enumerate(parts.parts):
        moved = normals.copy()
        moved[0, 3] = part.ahead[3] + 0.3
        assert np.isneginf(parts.log_densities(moved @ factor.T)[0, part_number])


@pytest.mark.parametrize(("prob", "sigma", "eps"), [(1.0, 2.0, 1.0), (0.2, 0.4, 6.0), (0.05, 1.0, 0.1)])
@pytest.mark.parametrize("kind", [ChainRemove, ChainAdd])
def test_losses_and_densities_of_chains(kind, prob, sigma, eps):
    gram = chain_gram(dm.BandedToeplitz(12, (1.0, 0.5, 0.2)), 3, prob).scaled(sigma**-2)
    proposal = kind.at(gram, eps)
    loss, part = proposal.loss_rounding, proposal.part_rounding
    assert 0.0 < loss.error < 1e-10
    assert 0.0 < part.error < 1e-8
    values = gram.sample(np.random.default_rng(3), 20) + 0.5 * gram.diagonal
    losses = gram.losses(values)
    with mpmath.workdps(50):
        banded = [[mpf(float(x)) for x in row] for row in gram.banded]

        def entry(s, t):
            s, t = min(s, t), max(s, t)
            return mpmath.fsum(banded[s][t - s + k] * banded[t][k] for k in range(3) if t - s + k < 3)

        entries = [[entry(s, t) for t in range(12)] for s in range(12)]
        p, b = mpf(gram.sampling_prob), 3

        def expected(exponents):
            """Log E[prod of e^exponents over the steps joined], by the recursion in exact arithmetic."""
            tail = [mpf(1)] * (12 + b)
            for t in range(11, -1, -1):
                tail[t] = (1 - p) * tail[t + 1] + p * mpmath.exp(exponents[t]) * tail[t + b]
            total = 1 + (b - 1) * p
            return mpmath.log((tail[0] + p * mpmath.fsum(tail[1:b])) / total)

        for draw in range(8):
            row = floats(values[draw])
            exact = expected([w - entries[t][t] / 2 for t, w in enumerate(row)])
            assert abs(mpf(float(losses[draw])) - exact) <= loss.error
            if kind is ChainAdd:
                continue
            for one in proposal.parts[1:]:
                found = float(one.log_density(gram, values[draw : draw + 1], losses[draw : draw + 1])[0])
                if isinstance(one, CopiesPart):
                    assert abs(mpf(found) - one.law.power * exact + mpf(one.law.log_total)) <= part.error
                    continue
                shift = floats(one.shift)
                image = [mpmath.fsum(k * v for k, v in zip(line, shift, strict=True)) for line in entries]
                straight = mpmath.fsum(v * w for v, w in zip(shift, row, strict=True))
                straight -= mpmath.fsum(v * m for v, m in zip(shift, image, strict=True)) / 2
                if one.scale == 0.0:
                    total = straight
                else:
                    sizes, logs = one.sizes
                    exponents, gains = [], []
                    for t in range(12):
                        terms = [
                            mpf(float(g)) + a * (row[t] - image[t]) - a * a * entries[t][t] / 2
                            for a, g in zip(map(mpf, sizes.tolist()), logs[:, t], strict=True)
                        ]
                        exponents.append(mpmath.log(mpmath.fsum(map(mpmath.exp, terms))))
                        gains.append(mpf(float(one.tilt.gains[t])))
                    total = straight + expected(exponents) - expected(gains)
                assert abs(mpf(found) - total) <= part.error, one.name


@pytest.mark.parametrize("count", [1, 7, 1000])
def test_the_lemma_on_means_of_exponentials(count):
    """Against 50 digits, and a bound without its sizes is broken: the exponents' own rounding counts."""
    rng = np.random.default_rng(count)
    for scale in (1.0, 30.0, 300.0):
        true = scale * rng.standard_normal(count)
        shifted = true + 1e3
        top = shifted.max()
        computed = top + math.log(np.exp(shifted - top).mean())
        with mpmath.workdps(50):
            exact = mean_of_exp([mpf(float(one)) for one in shifted])
            error = abs(mpf(computed) - exact)
            assert error <= mean_rounding(count, 2e3, 0.0).error
            moved = mean_of_exp([mpf(float(one)) + 1000 for one in true])
            assert abs(mpf(computed) - moved) <= mean_rounding(count, 2e3, 1.2e-13).error
