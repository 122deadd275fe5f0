"""Poisson-sampled releases: privacy losses on a lattice, convolved; or by prv-accountant."""

from dpmech.accounting.poisson.accountant import PoissonAccountant, PoissonRelease
from dpmech.accounting.poisson.convolution import LossMoments
from dpmech.accounting.poisson.lattice import Loss
from dpmech.accounting.poisson.prv import PrvAccountant

__all__ = ["Loss", "LossMoments", "PoissonAccountant", "PoissonRelease", "PrvAccountant"]
