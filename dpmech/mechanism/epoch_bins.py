"""One allocation to bins for all epochs: the steps of one example, and what a run cut short has begun."""

from dpmech.exceptions import InvalidParameterError
from dpmech.guards import check_integer
from dpmech.mechanism.participation import Pattern

__all__ = ["check_bins", "epochs_begun", "one_bin"]


def check_bins(bins: int, n: int) -> None:
    """Refuse a number of bins that is no divisor of n."""
    if bins > n or n % bins:
        raise InvalidParameterError("bins", bins, f"a divisor of n={n}")


def one_bin(bins: int, n: int) -> Pattern:
    """The worst-case support of an example in one bin: that of FixedEpochs(n / bins)."""
    check_bins(bins, n)
    return Pattern(bins, n // bins, evenly_spaced=True)


def epochs_begun(bins: int, n: int, steps: int) -> int:
    """The steps of all epochs that the first `steps` of n have begun."""
    check_bins(bins, n)
    return -(-check_integer("steps", steps, minimum=1, maximum=n) // bins) * bins
