"""Balls-in-Bins for users with several examples: Balls-in-Bins over tuples of bins."""

from dpmech.accounting.user_bins.accountants import user_balls_in_bins
from dpmech.accounting.user_bins.gram import MOST_TUPLES, UserGram, lower_tuple_gram, tuple_gram

__all__ = ["MOST_TUPLES", "UserGram", "lower_tuple_gram", "tuple_gram", "user_balls_in_bins"]
