"""Examples whose gradients are not finite: what the operator hears, and what never depends on them."""

import warnings

import torch

from dpmech.exceptions import NumericalError
from dpmech.optim.processes import Group, add_over

__all__ = ["NonFiniteGradientsWarning", "Probe", "warn_operator"]

_PROBE = 32  # examples


class NonFiniteGradientsWarning(UserWarning):
    """Examples were left out because their gradients are not finite.

    Raw data, for whoever holds the data: not to be published. It is shown once for every optimizer and never
    raised, not even by the filter "error": a run that stops because of an example tells that it is there.
    """


class Probe:
    """Whether anything but noise would be trained on, as far as the examples before the first step tell.

    Args:
        known: whether everything that came so far is counted here.
    """

    def __init__(self, *, known: bool = True) -> None:
        self._seen = 0
        self._finite = 0
        self._unknown = 0 if known else 1

    def note(self, examples: int | None, dropped: int) -> None:
        """Count examples, None where nobody says how many, and those left out among them."""
        if examples is None:
            self._unknown += 1
        else:
            self._seen += examples
            self._finite += examples - dropped

    def check(self, device: torch.device, group: Group) -> None:
        """Before the first release: whether 32 examples or more have come, and not one was finite.

        All processes answer alike. After the first release the answer must no longer matter.

        Raises:
            NumericalError: if so.
        """
        counts = torch.tensor([self._seen, self._finite, self._unknown], dtype=torch.int64, device=device)
        add_over([counts], group)
        seen, finite, unknown = counts.tolist()
        if seen >= _PROBE and finite == 0 and unknown == 0:
            raise NumericalError(
                "the gradients of all examples before the first step are not finite: the run would "
                "train on noise alone. Nothing was released. Look for NaN in the data, and for a loss that "
                "overflows. (This message tells something about the data: keep it to who holds them.)"
            )


def warn_operator(dropped: int) -> None:
    """Warn that examples were left out, without ever stopping the run."""
    text = (
        f"{dropped} examples had a gradient that is not finite and were left out, the first of this run; "
        "dropped_examples goes on counting. Steps without any finite example are noise alone. This warning "
        "and that number are raw data: keep them to who holds the data"
    )
    try:
        warnings.warn(text, NonFiniteGradientsWarning, stacklevel=4)
    except NonFiniteGradientsWarning:
        # The filter "error": a run that stopped here would release that there is such an example.
        with warnings.catch_warnings():
            warnings.simplefilter("always", NonFiniteGradientsWarning)
            warnings.warn(text, NonFiniteGradientsWarning, stacklevel=4)
