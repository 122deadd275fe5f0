"""Balls-in-Bins as a scheme."""

import numpy as np

from dpmech.engines import Accountant, Certified, Deterministic, Exact, Method, Rdp
from dpmech.mechanism import Mechanism
from dpmech.schemes.balls_in_bins.accountant import of_examples, of_fresh_bins, of_users
from dpmech.schemes.balls_in_bins.participation import BallsInBins, FreshBallsInBins, UserBallsInBins
from dpmech.schemes.balls_in_bins.sampler import (
    BallsInBinsSampler,
    FreshBallsInBinsSampler,
    UserBallsInBinsSampler,
)
from dpmech.schemes.batch_rule import BatchRule
from dpmech.schemes.scheme import Scheme

Bins = BallsInBins | UserBallsInBins


class BallsInBinsScheme(Scheme[Bins]):
    """Every example is put into one of b bins, uniformly; bin i is step i of every epoch."""

    samplers = {  # noqa: RUF012 - a constant
        BallsInBins: BallsInBinsSampler,
        UserBallsInBins: UserBallsInBinsSampler,
        FreshBallsInBins: FreshBallsInBinsSampler,
    }

    def default(self, participation: Bins) -> Method:
        """Certified samples; where every epoch has a new allocation, the law of a sum."""
        return Exact() if isinstance(participation, FreshBallsInBins) else Certified()

    def unsampled(self, participation: Bins) -> Method:
        """The dynamic program; moments for users, who have tuples of bins."""
        if isinstance(participation, FreshBallsInBins):
            return Exact()
        return Rdp() if isinstance(participation, UserBallsInBins) else Deterministic()

    def accountant(
        self,
        participation: Bins,
        mechanism: Mechanism,
        method: Method | None,
        rng: np.random.Generator | None,
    ) -> Accountant:
        """By samples, by a dominating ring, by moments, or by the law of a sum."""
        if isinstance(participation, UserBallsInBins):
            return of_users(participation, mechanism, method, rng)
        if isinstance(participation, FreshBallsInBins):
            return of_fresh_bins(participation, mechanism, method)
        return of_examples(participation, mechanism, method, rng)

    def batch_rule(self, participation: Bins, n: int) -> BatchRule:
        """Every epoch has the batches of the first; with a new allocation, everyone of it once."""
        fresh = isinstance(participation, FreshBallsInBins)
        return BatchRule(participation.pattern(n), epoch=participation.bins if fresh else None)


SCHEME = BallsInBinsScheme()
