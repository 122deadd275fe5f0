"""The mixtures of a pair, by what its Gram matrix is of: bins, unless another kind is registered."""

import functools
from collections.abc import Collection

from dpmech.accounting.balls_in_bins.gram import BinGram
from dpmech.accounting.balls_in_bins.proposals.add_mixture import AddProposal
from dpmech.accounting.balls_in_bins.proposals.mixture import Proposal
from dpmech.accounting.balls_in_bins.proposals.remove_mixture import RemoveProposal

__all__ = ["add_mixture", "remove_mixture"]


@functools.singledispatch
def remove_mixture(gram: BinGram, eps: float, names: Collection[str] | None = None) -> Proposal:
    """The REMOVE mixture at eps, its parts equally probable.

    Args:
        gram: the Gram matrix.
        eps: the privacy loss level.
        names: the parts to have, beside those that bound the weights; None for all.
    """
    return RemoveProposal.at(gram, eps, names)


@functools.singledispatch
def add_mixture(gram: BinGram, eps: float, names: Collection[str] | None = None) -> Proposal:
    """The ADD mixture at eps; arguments as for `remove_mixture`."""
    return AddProposal.at(gram, eps, names)
