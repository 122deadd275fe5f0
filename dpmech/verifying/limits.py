"""What a verification may cost, and what is known about its cost before anything is recomputed."""

import math

from dpmech.accounting import MOST_TUPLES, Deterministic
from dpmech.certificates import Certificate, RunRecord
from dpmech.mechanism import decoder_work, form_work
from dpmech.numerics import spend

__all__ = ["MAX_MEMORY", "MAX_SECONDS", "spend_on_claim", "spend_on_reading"]

# Unless the caller asks for more: seconds of one core, and bytes.
MAX_SECONDS, MAX_MEMORY = 300.0, 4e9
# The convex-order programme needs grids that grow like a power of 1 / rel_error; below this they have no end.
_FINEST = 1e-4
_SMALLEST_BLOCK, _BLOCK_ENTRIES = 16, 2**20
# Bytes an entry, of blocks, and of a prefix that is formed as a matrix.
_MATRIX = 64.0


def spend_on_reading(document: Certificate | RunRecord) -> None:
    """Count what it takes to write an object down as a file would state it; errors as for `spend`."""
    certificate = document.certificate if isinstance(document, RunRecord) else document
    work = decoder_work(certificate.strategy)
    spend(work.seconds, work.memory, what=f"the errors of {certificate.strategy!r}")


def spend_on_claim(document: Certificate | RunRecord) -> None:
    """Count what follows from the fields of the claim alone: vectors of the strategy, errors, settings.

    What depends on more (samples, lattices, grids, sets) is counted where it is about to begin.

    Raises:
        WorkLimitError: if that is beyond the budget.
    """
    certificate = document.certificate if isinstance(document, RunRecord) else document
    strategy, used = certificate.strategy, certificate.evidence.accountant
    # Twice: the sensitivity looks at all columns by two routes.
    work = decoder_work(strategy) + form_work(strategy)
    spend(work.seconds, work.memory, what=f"recomputing {strategy!r}")
    if isinstance(document, RunRecord) and 0 < document.steps < strategy.n:
        # The leading block may have no structure left.
        steps = float(document.steps)
        dense = strategy.shape.dense_prefix
        memory = _MATRIX * (float(strategy.n) ** 2 if dense else steps)
        spend(2e-8 * memory + (1e-9 * steps**3 if dense else 0.0), memory, what="the steps executed")
    participation = certificate.participation
    bins = participation.allocation_bins if participation.user_bins is None else MOST_TUPLES
    if bins is None or certificate.participation.certain:
        return
    # Draws come in blocks, of 16 at least.
    block = max(_SMALLEST_BLOCK * bins, _BLOCK_ENTRIES)
    spend(3e-7 * block, _MATRIX * block, what=f"drawing samples of {bins} bins")
    if isinstance(used, Deterministic) and used.rel_error < _FINEST:
        spend(math.inf, what=f"the convex-order programme at rel_error {used.rel_error!r}")
