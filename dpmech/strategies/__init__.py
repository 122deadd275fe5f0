"""Strategy matrices: one class a file, found by the conformance tests on their own."""

from dpmech.strategies.banded_inverse import BandedInverse as BandedInverse
from dpmech.strategies.banded_inverse import InverseSquareRoot as InverseSquareRoot
from dpmech.strategies.base import Strategy as Strategy
from dpmech.strategies.blt import BLT as BLT
from dpmech.strategies.dense import Dense as Dense
from dpmech.strategies.diagonal import Diagonal as Diagonal
from dpmech.strategies.diagonal import Identity as Identity
from dpmech.strategies.normalized import ColumnNormalized as ColumnNormalized
from dpmech.strategies.toeplitz import BandedToeplitz as BandedToeplitz
from dpmech.strategies.toeplitz import LambdaCGD as LambdaCGD
from dpmech.strategies.toeplitz import SquareRoot as SquareRoot
