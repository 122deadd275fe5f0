"""dpmech: how much noise private training needs, with the proof.

The public names are the ones below; everything else may change. Notation and units are one page of the
documentation: sigma is the standard deviation of the i.i.d. noise at clip norm 1, sensitivity included.
"""

import importlib as _importlib
from types import ModuleType as _ModuleType

from dpmech import samplers
from dpmech.auditing import CurveAudit, audit_profile, canary_scores, empirical_epsilon, one_run_epsilon
from dpmech.calibration import (
    AdvantageTarget,
    AttackTarget,
    Calibration,
    GaussianTarget,
    RiskCalibration,
    calibrate_sigma,
    calibrate_sigma_to,
    certify_sigma,
    delta,
    epsilon,
    profile,
)
from dpmech.composition import (
    BlockClipping,
    ClaimCurrency,
    GdpCurrency,
    Join,
    Ledger,
    Lot,
    PrivateSelection,
    RenyiCurrency,
    executed_epsilon,
    join,
)
from dpmech.documents import (
    Certificate,
    Claim,
    Continuity,
    Evidence,
    Kept,
    Policy,
    Randomness,
    RunRecord,
    Uniqueness,
    new_key,
)
from dpmech.engines import (
    Certified,
    Deterministic,
    DiscreteGaussian,
    Exact,
    Importance,
    NegativeBinomialRuns,
    Pld,
    PoissonRuns,
    PrivacyProfile,
    Prv,
    Rdp,
)
from dpmech.exceptions import (
    CertificateError,
    DpmechError,
    HorizonError,
    InvalidParameterError,
    MissingDependencyError,
    NumericalError,
    UnattainableBudgetError,
    UnsupportedCombinationError,
    WorkerError,
    WorkLimitError,
)
from dpmech.fitting import Fit, optimize
from dpmech.interchange import FlowerAccountant, from_opacus_history, to_dp_event
from dpmech.mechanism import (
    BLT,
    Adjacency,
    BandedInverse,
    BandedToeplitz,
    ColumnNormalized,
    Dense,
    Diagonal,
    EveryStep,
    Identity,
    InverseSquareRoot,
    LambdaCGD,
    Mechanism,
    Participation,
    PrivacyBudget,
    SquareRoot,
    Strategy,
    Unit,
    last_iterate_error,
    max_se,
    per_step_error,
    rmse,
    sensitivity,
    workloads,
)
from dpmech.numerics import Bounds, Cluster, Guarantee, Kind, Provenance, Workers
from dpmech.plans import TrainingPlan
from dpmech.schemes.b_min_sep import MinSepSampling
from dpmech.schemes.balls_in_bins import BallsInBins, FreshBallsInBins, UserBallsInBins
from dpmech.schemes.cyclic_poisson import CyclicPoisson, UserCyclicPoisson
from dpmech.schemes.fixed_order import FixedEpochs, MinSep, SingleParticipation, UserMinSep
from dpmech.schemes.fixed_size import FixedSizeLots
from dpmech.schemes.poisson import Poisson, UserPoisson
from dpmech.schemes.truncated_poisson import TruncatedPoisson
from dpmech.verifying import Check, Verification, sign, verify

__all__ = [
    "BLT",
    "Adjacency",
    "AdvantageTarget",
    "AttackTarget",
    "BallsInBins",
    "BandedInverse",
    "BandedToeplitz",
    "BlockClipping",
    "Bounds",
    "Calibration",
    "Certificate",
    "CertificateError",
    "Certified",
    "Check",
    "Claim",
    "ClaimCurrency",
    "Cluster",
    "ColumnNormalized",
    "Continuity",
    "CurveAudit",
    "CyclicPoisson",
    "Dense",
    "Deterministic",
    "Diagonal",
    "DiscreteGaussian",
    "DpmechError",
    "EveryStep",
    "Evidence",
    "Exact",
    "Fit",
    "FixedEpochs",
    "FixedSizeLots",
    "FlowerAccountant",
    "FreshBallsInBins",
    "GaussianTarget",
    "GdpCurrency",
    "Guarantee",
    "HorizonError",
    "Identity",
    "Importance",
    "InvalidParameterError",
    "InverseSquareRoot",
    "Join",
    "Kept",
    "Kind",
    "LambdaCGD",
    "Ledger",
    "Lot",
    "Mechanism",
    "MinSep",
    "MinSepSampling",
    "MissingDependencyError",
    "NegativeBinomialRuns",
    "NumericalError",
    "Participation",
    "Pld",
    "Poisson",
    "PoissonRuns",
    "Policy",
    "PrivacyBudget",
    "PrivacyProfile",
    "PrivateSelection",
    "Provenance",
    "Prv",
    "Randomness",
    "Rdp",
    "RenyiCurrency",
    "RiskCalibration",
    "RunRecord",
    "SingleParticipation",
    "SquareRoot",
    "Strategy",
    "TrainingPlan",
    "TruncatedPoisson",
    "UnattainableBudgetError",
    "Uniqueness",
    "Unit",
    "UnsupportedCombinationError",
    "UserBallsInBins",
    "UserCyclicPoisson",
    "UserMinSep",
    "UserPoisson",
    "Verification",
    "WorkLimitError",
    "WorkerError",
    "Workers",
    "audit_profile",
    "calibrate_sigma",
    "calibrate_sigma_to",
    "canary_scores",
    "certify_sigma",
    "delta",
    "empirical_epsilon",
    "epsilon",
    "executed_epsilon",
    "from_opacus_history",
    "join",
    "last_iterate_error",
    "max_se",
    "new_key",
    "one_run_epsilon",
    "optimize",
    "per_step_error",
    "profile",
    "rmse",
    "samplers",
    "sensitivity",
    "sign",
    "to_dp_event",
    "verify",
    "workloads",
]

__version__: str
_LAZY = {"optim", "plots"}  # need an extra, and time to import


def __getattr__(name: str) -> _ModuleType:
    if name in _LAZY:
        return _importlib.import_module(f"dpmech.{name}")
    if name == "__version__":
        # Reading it takes a tenth of the time of the whole import.
        found: str = _importlib.import_module("importlib.metadata").version("dpmech")
        return found  # type: ignore[return-value]  # its type is declared above
    raise AttributeError(f"module 'dpmech' has no attribute {name!r}")
