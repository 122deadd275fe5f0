"""Noise for a risk: targets in the terms of attacks, and the noise scale that keeps below one."""

from dpmech.risk_targets.search import RiskCalibration, calibrate_sigma_to
from dpmech.risk_targets.targets import AdvantageTarget, AttackTarget, GaussianTarget

__all__ = ["AdvantageTarget", "AttackTarget", "GaussianTarget", "RiskCalibration", "calibrate_sigma_to"]
