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
from dpmech.schemes.balls_in_bins.participation import BallsInBins
from dpmech.schemes.balls_in_bins.sampler import BallsInBinsSampler
from dpmech.schemes.scheme import BatchRule, Scheme, Structure, not_built


class BallsInBinsScheme(Scheme[BallsInBins]):
    """Every example is assigned to one of b bins, uniformly; bin i is step i of every epoch."""

    offers = {  # noqa: RUF012 - a constant
        "canary": "BallsInBins",
        "fit": "BallsInBins",
        "nodes": "BallsInBins",
        "risk": "BallsInBins",
    }
    samplers = {BallsInBins: BallsInBinsSampler}  # noqa: RUF012 - a constant

    def default(self, participation: BallsInBins) -> Method:
        """Certified samples; with a new allocation in every epoch, the distribution of a sum."""
        return Exact() if participation.fresh else Certified()

    def unsampled(self, participation: BallsInBins) -> Method:
        """The dynamic program; for users, who have tuples of bins, moments."""
        if participation.fresh:
            return Exact()
        return Rdp() if participation.unit is not None else Deterministic()

    def accountant(
        self,
        participation: BallsInBins,
        mechanism: Mechanism,
        method: Method | None,
        rng: np.random.Generator | None,
    ) -> Accountant:
        """By samples, a cyclic dominating pair (circulant Gram matrix), moments, or a sum's distribution."""
        if participation.unit is not None:
            return of_users(participation, mechanism, method, rng)
        if participation.fresh:
            return of_fresh_bins(participation, mechanism, method)
        return of_examples(participation, mechanism, method, rng)

    def batch_rule(self, participation: BallsInBins, n: int) -> BatchRule:
        """Every epoch has the batches of the first; with new allocations, every example once per epoch."""
        epoch = participation.bins if participation.fresh else None
        return BatchRule(participation.pattern(n), epoch=epoch)

    def canary(self, participation: BallsInBins, mechanism: Mechanism) -> Canary:
        """A canary in a uniform bin; with new allocations, in a new one in every epoch."""
        if participation.renewed:
            return Epochs.of(mechanism.strategy, participation.bins, np.ones(mechanism.steps))
        if participation.unit is not None:
            return super().canary(participation, mechanism)
        return of_pattern(mechanism, all_starts=True)

    def canary_score(
        self,
        participation: BallsInBins,
        executed: Strategy,
        outputs: FloatArray,
        sigma: float,
        weights: FloatArray,
    ) -> FloatArray | None:
        """For an example whose bin is not known."""
        bins = participation.bins
        if participation.unit is not None:
            return None
        if participation.renewed:
            return Epochs.of(executed, bins, weights).log_ratio(outputs, sigma)
        gradients = weights * (np.arange(executed.n) % bins == np.arange(bins)[:, None])
        images = Algebra(executed).matmul(gradients)
        return Mixture(gradients, images, replaced=False).log_ratio(outputs, sigma)

    def dataset_size_of(self, participation: BallsInBins, batch_size: float) -> tuple[float, bool] | None:
        """Every example is in exactly one bin, if the allocation is made once for the whole run."""
        if participation.fresh:
            return None
        return batch_size * participation.bins, True

    def nodes_refusal(self, participation: BallsInBins) -> str:
        """For examples certificates store nodes, unless there is only one bin."""
        if participation.unit is not None or participation.certain:
            return super().nodes_refusal(participation)
        return ""

    def structure(self, participation: BallsInBins) -> Structure:
        """The mixture over the bins; with a new allocation in every epoch noise has to be independent."""
        if participation.unit is not None:
            return Structure(not_fitted=not_built(participation), judged=False)
        if participation.certain:
            return Structure()
        if participation.fresh:
            return Structure(cycle=1)
        return Structure(bins=participation.bins)

    def renewed(self, participation: BallsInBins) -> Participation | None:
        """Only for examples."""
        if participation.unit is not None:
            return None
        return BallsInBins(participation.bins, fresh=True)


SCHEME = BallsInBinsScheme()
