"""Composition: several releases about the same people, from one batch or over the lifetime of a project."""

from dpmech.engines import (
    ZCDP,
    ApproximateDP,
    BasicMechanism,
    DiscreteLaplace,
    Gaussian,
    Laplace,
    NegativeBinomialRuns,
    PoissonRuns,
    PureDP,
    RandomizedResponse,
)
from dpmech.ledgers.executed import RunningEpsilon, epsilon_saved, executed_epsilon
from dpmech.ledgers.ledger import Ledger
from dpmech.ledgers.ledger_entries import CountsRelease, MechanismRelease, Mode, Release
from dpmech.ledgers.ledger_file import is_ledger, locked, parsed
from dpmech.ledgers.privacy_filters import AccountingMethod, ClaimAccounting, GdpAccounting, RenyiAccounting
from dpmech.ledgers.private_selection import PrivateSelection
from dpmech.ledgers.shared_batch import BlockClipping, JointRelease, SharedBatch, joint_release

__all__ = [
    "ZCDP",
    "AccountingMethod",
    "ApproximateDP",
    "BasicMechanism",
    "BlockClipping",
    "ClaimAccounting",
    "CountsRelease",
    "DiscreteLaplace",
    "Gaussian",
    "GdpAccounting",
    "JointRelease",
    "Laplace",
    "Ledger",
    "MechanismRelease",
    "Mode",
    "NegativeBinomialRuns",
    "PoissonRuns",
    "PrivateSelection",
    "PureDP",
    "RandomizedResponse",
    "Release",
    "RenyiAccounting",
    "RunningEpsilon",
    "SharedBatch",
    "epsilon_saved",
    "executed_epsilon",
    "is_ledger",
    "joint_release",
    "locked",
    "parsed",
]
