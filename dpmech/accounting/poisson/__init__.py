"""Poisson-sampled releases: the transform of their privacy loss; lattices, convolved; or prv-accountant."""

from dpmech.accounting.poisson.accountant import PoissonAccountant
from dpmech.accounting.poisson.convolution import LossMoments
from dpmech.accounting.poisson.lattice import Loss
from dpmech.accounting.poisson.lattice_route import LatticeRoute
from dpmech.accounting.poisson.prv import PrvAccountant
from dpmech.accounting.poisson.release import PoissonRelease
from dpmech.accounting.poisson.transform import transform

__all__ = [
    "LatticeRoute",
    "Loss",
    "LossMoments",
    "PoissonAccountant",
    "PoissonRelease",
    "PrvAccountant",
    "transform",
]
