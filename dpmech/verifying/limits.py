"""What reading a file may cost, and what is known about its cost before anything of its size is formed."""

from dpmech.certificates import Certificate, RunRecord
from dpmech.mechanism import decoder_work, form_work
from dpmech.numerics import spend

__all__ = ["MAX_MEMORY", "MAX_SECONDS", "READING_SECONDS", "spend_on_claim", "spend_on_reading"]

# Unless the caller says otherwise: CPU seconds of the checker, for each direction of a claim.
MAX_SECONDS = 60.0
# Of entries of a file that follow from others: seconds of one core, and bytes, estimated on the high side.
READING_SECONDS, MAX_MEMORY = 300.0, 4e9
# Bytes an entry of a prefix that is formed as a matrix.
_MATRIX = 64.0


def spend_on_reading(document: Certificate | RunRecord) -> None:
    """Count what it takes to write an object down as a file would state it; errors as for `spend`."""
    certificate = document.certificate if isinstance(document, RunRecord) else document
    work = decoder_work(certificate.strategy)
    spend(work.seconds, work.memory, what=f"the errors of {certificate.strategy!r}")


def spend_on_claim(document: Certificate | RunRecord) -> None:
    """Count what follows from the fields of the claim alone: vectors of the strategy, its errors.

    What depends on more (sets of steps) is counted where it is about to begin.

    Raises:
        WorkLimitError: if that is beyond the budget.
    """
    certificate = document.certificate if isinstance(document, RunRecord) else document
    strategy = certificate.strategy
    work = decoder_work(strategy) + form_work(strategy)  # errors, and the sensitivity
    spend(work.seconds, work.memory, what=f"recomputing {strategy!r}")
    if isinstance(document, RunRecord) and 0 < document.steps < strategy.n:
        # The leading block may have no structure left.
        steps = float(document.steps)
        dense = strategy.shape.dense_prefix
        memory = _MATRIX * (float(strategy.n) ** 2 if dense else steps)
        spend(2e-8 * memory + (1e-9 * steps**3 if dense else 0.0), memory, what="the steps executed")
