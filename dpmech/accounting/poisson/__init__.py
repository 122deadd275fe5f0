"""Poisson-sampled releases: the transform of their privacy loss; lattices, convolved; or prv-accountant."""

from dpmech.accounting.poisson.accountant import PoissonAccountant
from dpmech.accounting.poisson.convolution import (
    LOG_WRAP,
    MAX_LENGTH,
    ComposedLoss,
    JointMoments,
    LossMoments,
    compose_all,
)
from dpmech.accounting.poisson.direction import Direction
from dpmech.accounting.poisson.fixed_accountant import FixedAccountant
from dpmech.accounting.poisson.lattice import LatticeLoss, Loss, lower_lattice, upper_lattice
from dpmech.accounting.poisson.lattice_route import LatticeRoute
from dpmech.accounting.poisson.prv import PrvAccountant
from dpmech.accounting.poisson.release import FixedRelease, PoissonRelease, TruncatedRelease, UserRelease
from dpmech.accounting.poisson.transform import transform
from dpmech.accounting.poisson.truncated_accountant import TruncatedAccountant
from dpmech.accounting.poisson.user_accountant import UserAccountant

__all__ = [
    "LOG_WRAP",
    "MAX_LENGTH",
    "ComposedLoss",
    "Direction",
    "FixedAccountant",
    "FixedRelease",
    "JointMoments",
    "LatticeLoss",
    "LatticeRoute",
    "Loss",
    "LossMoments",
    "PoissonAccountant",
    "PoissonRelease",
    "PrvAccountant",
    "TruncatedAccountant",
    "TruncatedRelease",
    "UserAccountant",
    "UserRelease",
    "compose_all",
    "lower_lattice",
    "transform",
    "upper_lattice",
]
