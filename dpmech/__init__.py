"""dpmech: how much noise differentially private training needs, with proof.

The names below are public, as are the modules `methods`, `certificates`, `ledgers`, `audits`, `samplers`,
`interchange` and `exceptions`, and, with an extra, `optim` and `plots`. Everything else may change. Notation
and units are defined on one page of the documentation: sigma is the standard deviation of the i.i.d. noise at
clip norm 1, sensitivity included.
"""

import importlib as _importlib
from types import ModuleType as _ModuleType

from dpmech import audits, certificates, exceptions, interchange, ledgers, methods, samplers
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
from dpmech.certificates import (
    Certificate,
    Policy,
    PublicKey,
    RunRecord,
)
from dpmech.engines import (
    DiscreteGaussian,
    PrivacyProfile,
)
from dpmech.exceptions import (
    DpmechError,
    InvalidParameterError,
    NumericalError,
    UnattainableBudgetError,
    UnsupportedCombinationError,
)
from dpmech.fitting import Fit, Recommendation, error_lower_bound, optimize
from dpmech.ledgers import (
    Ledger,
    executed_epsilon,
)
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
from dpmech.numerics import Bounds, Cluster, Guarantee, Kind, Workers
from dpmech.plans import TrainingPlan, recommend
from dpmech.schemes.b_min_sep import BMinSep
from dpmech.schemes.balls_in_bins import BallsInBins
from dpmech.schemes.cyclic_poisson import CyclicPoisson
from dpmech.schemes.fixed_order import FixedEpochs, MinSep, SingleParticipation
from dpmech.schemes.fixed_size import FixedSizeBatches
from dpmech.schemes.poisson import Poisson
from dpmech.schemes.random_allocation import RandomAllocation
from dpmech.verifying import Verification, sign, verify

__all__ = [
    "BLT",
    "Adjacency",
    "AdvantageTarget",
    "AttackTarget",
    "BMinSep",
    "BallsInBins",
    "BandedInverse",
    "BandedToeplitz",
    "Bounds",
    "Calibration",
    "Certificate",
    "Cluster",
    "ColumnNormalized",
    "CyclicPoisson",
    "Dense",
    "Diagonal",
    "DiscreteGaussian",
    "DpmechError",
    "EveryStep",
    "Fit",
    "FixedEpochs",
    "FixedSizeBatches",
    "GaussianTarget",
    "Guarantee",
    "Identity",
    "InvalidParameterError",
    "InverseSquareRoot",
    "Kind",
    "LambdaCGD",
    "Ledger",
    "Mechanism",
    "MinSep",
    "NumericalError",
    "Participation",
    "Poisson",
    "Policy",
    "PrivacyBudget",
    "PrivacyProfile",
    "PublicKey",
    "RandomAllocation",
    "Recommendation",
    "RiskCalibration",
    "RunRecord",
    "SingleParticipation",
    "SquareRoot",
    "Strategy",
    "TrainingPlan",
    "UnattainableBudgetError",
    "Unit",
    "UnsupportedCombinationError",
    "Verification",
    "Workers",
    "audits",
    "calibrate_sigma",
    "calibrate_sigma_to",
    "certificates",
    "certify_sigma",
    "delta",
    "epsilon",
    "error_lower_bound",
    "exceptions",
    "executed_epsilon",
    "interchange",
    "last_iterate_error",
    "ledgers",
    "max_se",
    "methods",
    "optimize",
    "per_step_error",
    "profile",
    "recommend",
    "rmse",
    "samplers",
    "sensitivity",
    "sign",
    "verify",
    "workloads",
]

__version__: str
_LAZY = {"optim", "plots"}  # these need an extra and are slow to import


def __getattr__(name: str) -> _ModuleType:
    if name in _LAZY:
        return _importlib.import_module(f"dpmech.{name}")
    if name == "__version__":
        # Read lazily: it takes a tenth of the time of the whole import.
        found: str = _importlib.import_module("importlib.metadata").version("dpmech")
        return found  # type: ignore[return-value]  # its type is declared above
    raise AttributeError(f"module 'dpmech' has no attribute {name!r}")
