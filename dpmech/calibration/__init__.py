"""Calibration: the noise scale that a budget or a risk requires, and the privacy that a noise scale gives."""

from dpmech.calibration.calibrate import Calibration, calibrate_sigma, certify_sigma
from dpmech.calibration.evaluate import delta, epsilon, plain_scale, profile
from dpmech.calibration.risks import RiskCalibration, calibrate_sigma_to
from dpmech.calibration.targets import AdvantageTarget, AttackTarget, GaussianTarget

__all__ = [
    "AdvantageTarget",
    "AttackTarget",
    "Calibration",
    "GaussianTarget",
    "RiskCalibration",
    "calibrate_sigma",
    "calibrate_sigma_to",
    "certify_sigma",
    "delta",
    "epsilon",
    "plain_scale",
    "profile",
]
