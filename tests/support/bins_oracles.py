"""Independent values of delta(eps) for small Gram matrices: closed forms and quadrature, without dpmech."""

import numpy as np
import scipy.optimize
import scipy.special


def strategy_gram(n, bins, lam):
    """M M^T for LambdaCGD by brute force: m_i = sum_j C[:, i + j bins], C[i, j] = lam^(i - j)."""
    steps = np.arange(n)
    strategy = np.tril(lam ** np.maximum(np.subtract.outer(steps, steps), 0).astype(float))
    rows = sum(strategy[:, j * bins : (j + 1) * bins] for j in range(n // bins)).T
    return rows @ rows.T


def gaussian(square, eps):
    """H_eps of N(mu, 1) against N(0, 1), mu^2 = square: both directions are equal."""
    mu = np.sqrt(square)
    upper = scipy.special.log_ndtr(mu / 2 - eps / mu)
    lower = eps + scipy.special.log_ndtr(-mu / 2 - eps / mu)
    return float(np.exp(upper) * -np.expm1(lower - upper))


def _grid(dims, points, low, high):
    axes = [np.linspace(low, high, points)] * dims
    mesh = np.stack([axis.reshape(-1) for axis in np.meshgrid(*axes, indexing="ij")], axis=1)
    step = axes[0][1] - axes[0][0]
    density = np.exp(-0.5 * np.sum(mesh**2, axis=1)) * (step / np.sqrt(2 * np.pi)) ** dims
    return mesh, density


def quadrature(matrix, eps, *, log_bins=None):
    """(REMOVE, ADD) for b = 2 or 3, K positive definite: trapezoids over b - 1 normals, one in closed form.

    `log_bins` replaces log b in L: for planting a fault.
    """
    matrix = np.asarray(matrix, dtype=float)
    bins = len(matrix)
    count = np.exp(np.log(bins) if log_bins is None else log_bins)
    normals, density = _grid(bins - 1, 20001 if bins == 2 else 1401, -12.0, 16.0)
    factor = np.linalg.cholesky(matrix)
    outer = normals @ factor[:-1, :-1].T
    centre = normals @ factor[-1, :-1]
    spread = factor[-1, -1]
    partial = np.exp(outer - np.diag(matrix)[:-1] / 2).sum(axis=1)
    half = matrix[-1, -1] / 2
    total = np.exp(centre + spread**2 / 2 - half)

    def last(need):
        """P and the mean of X = exp(y - K/2) on {X >= need}, for the last bin given the others."""
        with np.errstate(divide="ignore"):
            cut = (np.log(np.maximum(need, 0.0)) + half - centre) / spread
        return scipy.special.ndtr(-cut), total * scipy.special.ndtr(spread - cut)

    top = count * np.exp(eps)
    prob, mean = last(top - partial)
    remove = np.sum(density * (mean + (partial - top) * prob)) / count
    room = count * np.exp(-eps) - partial
    prob, mean = last(room)
    below = np.where(room > 0, room * (1 - prob) - (total - mean), 0.0)
    add = np.sum(density * below) * np.exp(eps) / count
    return float(remove), float(add)


def identity_bracket(square, bins, eps, step=1e-3):
    """(lower, upper) around REMOVE for K = square * I, by convolving the law of X = exp(y - K/2) on a grid.

    Rounding down gives the lower end; splitting between neighbours with the mean kept gives the upper one
    (convexity), plus what summands beyond the grid can add at most: E[X; X > T] + (b - 1) P(X > T).
    """
    target = bins * np.exp(eps)
    size = 2 ** int(np.ceil(np.log2(12.0 * target / step)))
    nodes = step * np.arange(size)
    sd = np.sqrt(square)
    with np.errstate(divide="ignore"):
        cuts = (np.log(nodes) + square / 2) / sd
    beyond = scipy.special.ndtr(-cuts)
    calls = scipy.special.ndtr(sd - cuts) - nodes * beyond
    floor = np.append(beyond[:-1] - beyond[1:], 0.0)
    split = np.zeros(size)
    split[1:-1] = (calls[:-2] - 2 * calls[1:-1] + calls[2:]) / step
    split[0] = 1 - (calls[0] - calls[1]) / step
    split = np.maximum(split, 0.0)
    gain = np.maximum(step * np.arange(2 * size) - target, 0.0)
    ends = []
    for law in (floor, split):
        total = np.fft.irfft(np.fft.rfft(law, 2 * size) ** bins, 2 * size)
        ends.append(float(np.sum(total * gain) / bins))
    tail = calls[-1] + beyond[-1] * (nodes[-1] + bins)
    return ends[0], ends[1] + float(tail)


def identity_delta(square, bins, eps, cells=2**16):
    """(REMOVE, ADD) for K = square * I at any delta: the law of the sum of b lognormals, by FFT when tilted.

    The law of X = exp(y - K/2) is split between the nodes of a grid with mean kept (error O(step^2)), cut at
    5/4 of the target, and multiplied by e^(theta x): the sum of b tilted ones is one FFT power, in which the
    target is common, so that rounding stays relative. Where one summand lies beyond the grid the payoff is
    linear in the others.
    """
    sd = np.sqrt(square)
    values = []
    for target, sign in ((bins * np.exp(eps), 1.0), (bins * np.exp(-eps), -1.0)):
        step = target / cells
        nodes = step * np.arange(5 * cells // 4 + 1)
        with np.errstate(divide="ignore"):
            cuts = (np.log(nodes) + square / 2) / sd
        masses = np.where(cuts[1:] < 0.0, _between(cuts), -_between(-cuts))
        means = np.where(cuts[1:] < sd, _between(cuts - sd), -_between(sd - cuts))
        upper = np.clip((means - nodes[:-1] * masses) / step, 0.0, masses)
        law = np.append(masses - upper, 0.0)
        law[1:] += upper
        with np.errstate(divide="ignore"):
            logs = np.log(law)

        def chernoff(theta, logs=logs, nodes=nodes, target=target):
            return bins * scipy.special.logsumexp(logs + theta * nodes) - theta * target

        ends = (0.0, 200.0 / step / cells) if sign > 0.0 else (-50.0, 0.0)
        theta = scipy.optimize.minimize_scalar(chernoff, bounds=ends, method="bounded").x
        scale = scipy.special.logsumexp(logs + theta * nodes)
        size = 8 * cells
        total = np.fft.irfft(np.fft.rfft(np.exp(logs + theta * nodes - scale), size) ** bins, size)
        sums = step * np.arange(size)
        gain = np.maximum(sign * (sums - target), 0.0)
        shown = gain > 0.0
        terms = bins * scale - theta * sums[shown] + np.log(gain[shown])
        value = np.sum(total[shown] * np.exp(np.minimum(terms, 600.0)))
        if sign > 0.0:
            value += bins * (
                scipy.special.ndtr(sd - cuts[-1]) + (bins - 1 - target) * scipy.special.ndtr(-cuts[-1])
            )
        values.append(float(value / target * (np.exp(eps) if sign > 0.0 else 1.0)))
    return tuple(values)


def _between(cuts):
    return np.diff(scipy.special.ndtr(cuts))


def random_gram(case):
    """(K, eps) of a random dense non-negative strategy over two epochs, 2 to 20 bins; case is the seed."""
    rng = np.random.default_rng([2026, case])
    bins = int(rng.integers(2, 21))
    strategy = np.tril(rng.uniform(size=(2 * bins, 2 * bins))) + np.eye(2 * bins)
    rows = (strategy[:, :bins] + strategy[:, bins:]).T
    matrix = rows @ rows.T
    return matrix * float(rng.uniform(1.0, 6.0)) / matrix.diagonal().max(), float(rng.uniform(0.2, 3.0))


def plain_monte_carlo(matrix, eps, rng, *, samples, block=20_000):
    """(mean, standard error) with no importance sampling: REMOVE from P, ADD from Q.

    Both payoffs lie in [0, 1], so that the standard errors can be trusted. `eps` is a number or a list of
    them, which share their draws; each result has shape (2,) or (2, len(eps)), REMOVE first.
    """
    bins = len(matrix)
    factor = np.linalg.cholesky(matrix)
    levels = np.asarray(eps, dtype=np.float64)
    sums = np.zeros((2, 2, *levels.shape))
    for _ in range(samples // block):
        noise = factor @ rng.standard_normal((bins, block)) - np.diag(matrix)[:, None] / 2
        raised = noise + matrix[:, rng.integers(bins, size=block)]
        for place, fields in enumerate((raised, noise)):
            top = fields.max(axis=0)
            losses = top + np.log(np.mean(np.exp(fields - top), axis=0))
            gaps = levels[..., None] - losses if place == 0 else levels[..., None] + losses
            payoffs = -np.expm1(np.minimum(gaps, 0.0))
            sums[place] += payoffs.sum(axis=-1), (payoffs**2).sum(axis=-1)
    means = sums[:, 0] / samples
    return means, np.sqrt(np.maximum(sums[:, 1] / samples - means**2, 0.0) / samples)
