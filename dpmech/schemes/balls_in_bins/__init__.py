"""Balls-in-Bins: every example in one random bin; bin i is step i of every epoch."""

from dpmech.schemes.balls_in_bins.accountant import (
    accountant_in_turn,
    certified_accountant,
    deterministic_accountant,
)
from dpmech.schemes.balls_in_bins.participation import (
    BallsInBins,
    FreshBallsInBins,
    UserBallsInBins,
    check_bins,
    epochs_begun,
    one_bin,
    users_in_fresh_bins,
)
from dpmech.schemes.balls_in_bins.sampler import (
    BallsInBinsSampler,
    FreshBallsInBinsSampler,
    UserBallsInBinsSampler,
)
from dpmech.schemes.balls_in_bins.user_accountant import user_balls_in_bins

__all__ = [
    "BallsInBins",
    "BallsInBinsSampler",
    "FreshBallsInBins",
    "FreshBallsInBinsSampler",
    "UserBallsInBins",
    "UserBallsInBinsSampler",
    "accountant_in_turn",
    "certified_accountant",
    "check_bins",
    "deterministic_accountant",
    "epochs_begun",
    "one_bin",
    "user_balls_in_bins",
    "users_in_fresh_bins",
]
