"""b-min-sep sampling: the likelihood ratio by a recursion over the rest counter, and mixtures of chains."""

from dpmech.accounting.min_sep.accountants import min_sep_sampling
from dpmech.accounting.min_sep.adding import ChainAdd
from dpmech.accounting.min_sep.gram import ChainGram, chain_gram
from dpmech.accounting.min_sep.removing import ChainRemove

__all__ = ["ChainAdd", "ChainGram", "ChainRemove", "chain_gram", "min_sep_sampling"]
