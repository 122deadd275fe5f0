"""Balls-in-Bins as a scheme."""

import numpy as np

from dpmech.engines import (
    Accountant,
    Algebra,
    Canary,
    Certified,
    Deterministic,
    Epochs,
    Exact,
    Method,
    Mixture,
    Rdp,
    of_pattern,
)
from dpmech.mechanism import Mechanism, Participation, Strategy
from dpmech.numerics import FloatArray
from dpmech.schemes.balls_in_bins.accountant import of_examples, of_fresh_bins, of_users
from dpmech.schemes.balls_in_bins.participation import BallsInBins, FreshBallsInBins, UserBallsInBins
from dpmech.schemes.balls_in_bins.sampler import (
    BallsInBinsSampler,
    FreshBallsInBinsSampler,
    UserBallsInBinsSampler,
)
from dpmech.schemes.scheme import BatchRule, Scheme, Structure, not_built

Bins = BallsInBins | UserBallsInBins


class BallsInBinsScheme(Scheme[Bins]):
    """Every example is put into one of b bins, uniformly; bin i is step i of every epoch."""

    offers = {  # noqa: RUF012 - a constant
        "canary": "BallsInBins",
        "fit": "BallsInBins",
        "nodes": "BallsInBins",
        "risk": "BallsInBins",
    }
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

    def canary(self, participation: Bins, mechanism: Mechanism) -> Canary:
        """In any bin, each as likely; in one of every epoch where allocations are new."""
        if isinstance(participation, FreshBallsInBins) and not participation.certain:
            return Epochs.of(mechanism.strategy, participation.bins, np.ones(mechanism.steps))
        if isinstance(participation, UserBallsInBins):
            return super().canary(participation, mechanism)
        return of_pattern(mechanism, all_starts=True)

    def canary_score(
        self,
        participation: Bins,
        executed: Strategy,
        outputs: FloatArray,
        sigma: float,
        weights: FloatArray,
    ) -> FloatArray | None:
        """Of an example, in a bin that nobody knows."""
        bins = participation.bins
        if isinstance(participation, UserBallsInBins):
            return None
        if isinstance(participation, FreshBallsInBins) and not participation.certain:
            return Epochs.of(executed, bins, weights).log_ratio(outputs, sigma)
        gradients = weights * (np.arange(executed.n) % bins == np.arange(bins)[:, None])
        images = Algebra(executed).matmul(gradients)
        return Mixture(gradients, images, replaced=False).log_ratio(outputs, sigma)

    def dataset_size_of(self, participation: Bins, batch_size: float) -> tuple[float, bool] | None:
        """Every example is in one bin of an allocation for the whole run."""
        if isinstance(participation, FreshBallsInBins):
            return None
        return batch_size * participation.bins, True

    def nodes_refusal(self, participation: Bins) -> str:
        """Of examples certificates keep them, unless there is one bin only."""
        if isinstance(participation, UserBallsInBins) or participation.certain:
            return super().nodes_refusal(participation)
        return ""

    def structure(self, participation: Bins) -> Structure:
        """The mixture over the bins; with a new allocation every epoch noise has to be independent."""
        if isinstance(participation, UserBallsInBins):
            return Structure(not_fitted=not_built(participation), judged=False)
        if participation.certain:
            return Structure()
        if isinstance(participation, FreshBallsInBins):
            return Structure(cycle=1)
        return Structure(bins=participation.bins)

    def renewed(self, participation: Bins) -> Participation | None:
        """For examples."""
        if isinstance(participation, UserBallsInBins):
            return None
        return BallsInBins(participation.bins, fresh=True)


SCHEME = BallsInBinsScheme()
