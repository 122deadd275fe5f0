"""Gram matrices of the bins, dense and structured, behind one interface."""

from dpmech.accounting.balls_in_bins.gram.base import BinGram, fft_rounding
from dpmech.accounting.balls_in_bins.gram.dense import DenseGram
from dpmech.accounting.balls_in_bins.gram.structured import CirculantGram, FactorGram

__all__ = ["BinGram", "CirculantGram", "DenseGram", "FactorGram", "fft_rounding"]
