"""Composition of one-dimensional privacy losses: by their transforms, on lattices, or by prv-accountant."""

from dpmech.engines.losses.accountants import (
    FixedAccountant,
    PoissonAccountant,
    ReplacedAccountant,
    TruncatedAccountant,
    UserAccountant,
    sampled_divergence,
)
from dpmech.engines.losses.convolution import (
    LOG_WRAP,
    MAX_LENGTH,
    ComposedLoss,
    JointMoments,
    LossMoments,
    compose_all,
)
from dpmech.engines.losses.direction import Direction, FewLines
from dpmech.engines.losses.lattice import LatticeLoss, Loss, lower_lattice, upper_lattice
from dpmech.engines.losses.lattice_route import LatticeRoute
from dpmech.engines.losses.prv import PrvAccountant
from dpmech.engines.losses.release import (
    FixedDraw,
    FixedRelease,
    PoissonRelease,
    ReplacedRelease,
    TruncatedRelease,
    Truncation,
    UserRelease,
)
from dpmech.engines.losses.replaced import ReplacedLoss
from dpmech.engines.losses.revealed import ComposedAccountant, RevealedSchedule
from dpmech.engines.losses.transform import transform

__all__ = [
    "LOG_WRAP",
    "MAX_LENGTH",
    "ComposedAccountant",
    "ComposedLoss",
    "Direction",
    "FewLines",
    "FixedAccountant",
    "FixedDraw",
    "FixedRelease",
    "JointMoments",
    "LatticeLoss",
    "LatticeRoute",
    "Loss",
    "LossMoments",
    "PoissonAccountant",
    "PoissonRelease",
    "PrvAccountant",
    "ReplacedAccountant",
    "ReplacedLoss",
    "ReplacedRelease",
    "RevealedSchedule",
    "TruncatedAccountant",
    "TruncatedRelease",
    "Truncation",
    "UserAccountant",
    "UserRelease",
    "compose_all",
    "lower_lattice",
    "sampled_divergence",
    "transform",
    "upper_lattice",
]
