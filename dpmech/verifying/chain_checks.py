"""Whether the likelihood ratios that bets under b-min-sep sampling rest on are those of other code.

The bets draw anew, but with the compiled recursions of the accountant. A few hundred outputs show whether
these say what the forward recursion of `chain_draws` says, in plain numpy.
"""

import numpy as np

from dpmech.accounting import AddProposal, ChainGram, ChainRemove, add_mixture, chain_gram, remove_mixture
from dpmech.certificates import Certificate
from dpmech.exceptions import UnsupportedCombinationError
from dpmech.numerics import FloatArray
from dpmech.verifying.chain_draws import ChainDraws, chain_draws
from dpmech.verifying.report import Check

__all__ = ["ratio_check"]

_OUTPUTS = 240
# Means of the outputs, over those of the participations: down to where ADD looks, up to large losses.
_FACTORS = (-2.0, 0.0, 1.0, 2.0)
# Of logs, in units of one plus the sum of the sizes of their terms. Faults are larger, and rounding smaller.
_CLOSE = 1e-9


def ratio_check(certificate: Certificate, rng: np.random.Generator | None) -> Check:
    """Log dP/dQ, the densities of the REMOVE mixture and the bounds on weights, by other code.

    Args:
        certificate: under b-min-sep sampling.
        rng: of the outputs; None takes entropy from the operating system.

    Raises:
        UnsupportedCombinationError: where nobody rests.
    """
    law = certificate.participation.rest_law
    if law is None:
        raise UnsupportedCombinationError(
            f"{certificate.participation!r} lets nobody rest", supported="MinSepSampling"
        )
    draws, eps = chain_draws(certificate, rng), certificate.budget.eps
    gram = chain_gram(certificate.strategy, law.min_sep, law.sampling_prob).scaled(certificate.sigma**-2)
    columns = draws.matrix / certificate.sigma
    rows = draws.rows(columns, np.resize(_FACTORS, _OUTPUTS))
    problem = _ratios(draws, gram, columns, rows) or _mixtures(draws, gram, columns, rows, eps)
    detail = problem or f"likelihood ratios and densities at {_OUTPUTS} outputs are those of other code"
    return Check("privacy", ok=not problem, detail=detail, route="forward over the rest counter")


def _ratios(draws: ChainDraws, gram: ChainGram, columns: FloatArray, rows: FloatArray) -> str:
    one, none = np.ones(1), np.zeros((1, len(columns)))
    own = draws.log_densities(columns, rows, one, none, none[0])
    size = 1.0 + np.abs(rows @ columns).sum(axis=1)
    off = float(np.max(np.abs(gram.losses(gram.correlated(rows)) - own) / size))
    return "" if off <= _CLOSE else f"likelihood ratios differ by {off:.2g} of their terms"


def _mixtures(draws: ChainDraws, gram: ChainGram, columns: FloatArray, rows: FloatArray, eps: float) -> str:
    remove, add = remove_mixture(gram, eps), add_mixture(gram, eps)
    if not isinstance(remove, ChainRemove) or not isinstance(add, AddProposal):
        return "the mixtures are not those of chains"
    values, found = gram.correlated(rows), {}
    for part in remove.parts:
        found[part.name] = own = draws.log_densities(columns, rows, *part.sizes, part.shift)
        largest = float(np.max(part.sizes[0])) + float(np.max(np.abs(part.shift)))
        size = 1.0 + (1.0 + largest) ** 2 * (np.abs(values).sum(axis=1) + float(gram.diagonal.sum()))
        off = float(np.max(np.abs(part.log_density(gram, values) - own) / size))
        if not off <= _CLOSE:
            return f"densities of the part {part.name!r} differ by {off:.2g} of their terms"
    # What bounds the weights: densities of the star, and the half-space that ADD reaches into.
    (star,) = (part for part in remove.parts if part.name in remove.bounding)
    losses, slack = found["nominal"], _CLOSE * (1.0 + np.abs(values).sum(axis=1)) * (1.0 + star.scale)
    if np.any(found["star"] < star.scale * (losses - star.tilt.log_total) - slack):
        return "a density of the star is below its bound"
    inside = values @ add.point.direction <= -add.point.depth + (losses + eps) + slack
    return "" if np.all(inside) else "an output lies beyond the half-space of ADD"
