"""b-min-sep sampling: the likelihood ratio by a recursion over the rest counter, and mixtures of chains."""

from dpmech.accounting.balls_in_bins import add_mixture, remove_mixture, rough_log_delta
from dpmech.accounting.min_sep.accountants import min_sep_sampling
from dpmech.accounting.min_sep.adding import ChainAdd
from dpmech.accounting.min_sep.gram import ChainGram, chain_gram, rough_log
from dpmech.accounting.min_sep.removing import ChainRemove

__all__ = ["ChainAdd", "ChainGram", "ChainRemove", "chain_gram", "min_sep_sampling"]

remove_mixture.register(ChainGram, ChainRemove.at)
add_mixture.register(ChainGram, ChainAdd.at)
rough_log_delta.register(ChainGram, rough_log)
