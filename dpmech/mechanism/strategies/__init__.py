"""Strategy matrices: families of C with their algebra, as frozen dataclasses."""

from dpmech.mechanism.strategies.banded_inverse import BandedInverse, InverseSquareRoot
from dpmech.mechanism.strategies.base import Strategy, check_strategy
from dpmech.mechanism.strategies.blt import BLT
from dpmech.mechanism.strategies.dense import Dense
from dpmech.mechanism.strategies.diagonal import Diagonal, Identity
from dpmech.mechanism.strategies.normalized import ColumnNormalized
from dpmech.mechanism.strategies.scaled_toeplitz import ScaledToeplitz
from dpmech.mechanism.strategies.shape import decoder_work, form_work
from dpmech.mechanism.strategies.toeplitz import (
    BandedToeplitz,
    LambdaCGD,
    SquareRoot,
    check_bands,
    inverse_square_root_coefs,
    square_root_coefs,
)

__all__ = [
    "BLT",
    "BandedInverse",
    "BandedToeplitz",
    "ColumnNormalized",
    "Dense",
    "Diagonal",
    "Identity",
    "InverseSquareRoot",
    "LambdaCGD",
    "ScaledToeplitz",
    "SquareRoot",
    "Strategy",
    "check_bands",
    "check_strategy",
    "decoder_work",
    "form_work",
    "inverse_square_root_coefs",
    "square_root_coefs",
]
