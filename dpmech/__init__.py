"""dpmech: how much noise private training needs, with the proof.

The public names are the ones below; everything else may change. Notation and units are one page of the
documentation: sigma is the standard deviation of the i.i.d. noise at clip norm 1, sensitivity included.
"""

import importlib as _importlib
from importlib.metadata import version as _version
from types import ModuleType as _ModuleType

from dpmech import samplers as samplers
from dpmech import workloads as workloads
from dpmech.accounting.block_clipping import BlockClipping as BlockClipping
from dpmech.accounting.lots import Join as Join
from dpmech.accounting.lots import Lot as Lot
from dpmech.accounting.lots import join as join
from dpmech.accounting.methods import Certified as Certified
from dpmech.accounting.methods import Deterministic as Deterministic
from dpmech.accounting.methods import Exact as Exact
from dpmech.accounting.methods import Importance as Importance
from dpmech.accounting.methods import Pld as Pld
from dpmech.accounting.methods import Prv as Prv
from dpmech.accounting.methods import Rdp as Rdp
from dpmech.bounds import Bounds as Bounds
from dpmech.budget import Adjacency as Adjacency
from dpmech.budget import PrivacyBudget as PrivacyBudget
from dpmech.calibration import Calibration as Calibration
from dpmech.calibration import calibrate_sigma as calibrate_sigma
from dpmech.calibration import delta as delta
from dpmech.calibration import epsilon as epsilon
from dpmech.canaries import canary_scores as canary_scores
from dpmech.canaries import one_run_epsilon as one_run_epsilon
from dpmech.certificates import Certificate as Certificate
from dpmech.claims import Claim as Claim
from dpmech.claims import Evidence as Evidence
from dpmech.currencies import ClaimCurrency as ClaimCurrency
from dpmech.currencies import GdpCurrency as GdpCurrency
from dpmech.currencies import RenyiCurrency as RenyiCurrency
from dpmech.early_stopping import executed_epsilon as executed_epsilon
from dpmech.empirical import empirical_epsilon as empirical_epsilon
from dpmech.exceptions import CertificateError as CertificateError
from dpmech.exceptions import DpmechError as DpmechError
from dpmech.exceptions import HorizonError as HorizonError
from dpmech.exceptions import InvalidParameterError as InvalidParameterError
from dpmech.exceptions import MissingDependencyError as MissingDependencyError
from dpmech.exceptions import NumericalError as NumericalError
from dpmech.exceptions import UnattainableBudgetError as UnattainableBudgetError
from dpmech.exceptions import UnsupportedCombinationError as UnsupportedCombinationError
from dpmech.exceptions import WorkLimitError as WorkLimitError
from dpmech.fitting import Fit as Fit
from dpmech.fitting import optimize as optimize
from dpmech.ledger import Ledger as Ledger
from dpmech.objectives import last_iterate_error as last_iterate_error
from dpmech.objectives import max_se as max_se
from dpmech.objectives import per_step_error as per_step_error
from dpmech.objectives import rmse as rmse
from dpmech.participation import BallsInBins as BallsInBins
from dpmech.participation import CyclicPoisson as CyclicPoisson
from dpmech.participation import EveryStep as EveryStep
from dpmech.participation import FixedEpochs as FixedEpochs
from dpmech.participation import MinSep as MinSep
from dpmech.participation import Participation as Participation
from dpmech.participation import Poisson as Poisson
from dpmech.participation import SingleParticipation as SingleParticipation
from dpmech.run_record import Continuity as Continuity
from dpmech.run_record import Kept as Kept
from dpmech.run_record import Randomness as Randomness
from dpmech.run_record import RunRecord as RunRecord
from dpmech.run_record import Uniqueness as Uniqueness
from dpmech.sensitivities import sensitivity as sensitivity
from dpmech.strategies import BLT as BLT
from dpmech.strategies import BandedInverse as BandedInverse
from dpmech.strategies import BandedToeplitz as BandedToeplitz
from dpmech.strategies import ColumnNormalized as ColumnNormalized
from dpmech.strategies import Dense as Dense
from dpmech.strategies import Diagonal as Diagonal
from dpmech.strategies import Identity as Identity
from dpmech.strategies import InverseSquareRoot as InverseSquareRoot
from dpmech.strategies import LambdaCGD as LambdaCGD
from dpmech.strategies import SquareRoot as SquareRoot
from dpmech.strategies import Strategy as Strategy
from dpmech.verifying import Check as Check
from dpmech.verifying import Verification as Verification
from dpmech.verifying import verify as verify

__version__ = _version("dpmech")
__all__ = [name for name in dir() if not name.startswith("_")]

_LAZY = {"optim"}  # needs an extra, and time to import


def __getattr__(name: str) -> _ModuleType:
    if name in _LAZY:
        return _importlib.import_module(f"dpmech.{name}")
    raise AttributeError(f"module 'dpmech' has no attribute {name!r}")
