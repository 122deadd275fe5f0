"""PrivacyProfile: the whole curve delta(eps) of a mechanism in both directions, with proved bounds."""

import dataclasses
import functools
from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING

from dpmech.engines.profiles.composition import Composition
from dpmech.engines.profiles.dp_accounting_form import Exchanged
from dpmech.engines.profiles.gaussian_envelope import envelope_mu, gaussian_release_mu
from dpmech.engines.profiles.private_selection import RunCount, selected_curve
from dpmech.engines.profiles.tradeoff import Stick, bayes_ends, best_power, larger, mirrored
from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.guards import check_delta, check_eps, check_integer, check_real
from dpmech.mechanism import Mechanism
from dpmech.numerics import (
    BOUND,
    Bounds,
    Fact,
    Provenance,
    joined,
    register_words,
    rounded_down,
    rounded_up,
    typed,
    up,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _best_of_runs(facts: Mapping[str, Fact]) -> str:
    settings = (
        f"{name} {typed(value) if isinstance(value, float) else value}"
        for name, value in facts.items()
        if name != "law"
    )
    return ", ".join([f"the best of a secret number of runs, {facts['law']}", *settings])


register_words(
    {
        "profile.composed": "privacy profiles of {releases} releases, composed",
        "profile.best_of_runs": _best_of_runs,
    }
)


# Allowed change of log delta by a lattice.
_TOLERANCE = 1e-3
# For plots: number of points, the smallest range of eps, and the smallest delta relative to its limit.
_POINTS, _SHORTEST, _ABOVE_FLOOR = 40, 1e-6, 1.5


@dataclasses.dataclass(frozen=True, eq=False)
class Answers(Exchanged):
    """Evaluation of a profile at single points; `PrivacyProfile` is the complete class.

    Args:
        parts: the components of the profile.
        guarantee: the guarantee of the parts.
        by: the provenance of the parts.
        adjacency: the neighbouring relation.
        unit: the unit of privacy.
    """

    def hockey_stick(self, eps: float, *, add: bool) -> Bounds:
        """Bounds on one direction: H at e^eps, at any real eps.

        Args:
            eps: finite; may be negative.
            add: H(Q || P), else H(P || Q).

        Raises:
            InvalidParameterError: on a bad argument.
            NumericalError: if no affordable lattice bounds it.
        """
        at = check_real("eps", eps)
        if not isinstance(add, bool):
            raise InvalidParameterError("add", add, "True or False")
        return self._labelled(*self._ends(at, add=add))

    def delta(self, eps: float) -> Bounds:
        """Bounds on delta at eps >= 0; errors as for `hockey_stick`."""
        at = check_eps(eps, zero_allowed=True)
        sampled = self.parts.sampled
        if len(sampled) == 1 and self.parts.releases == sampled[0].steps:
            found = sampled[0].accountant.delta(1.0, at, tolerance=0.4 * _TOLERANCE)
            return self._labelled(found.lower, found.upper)
        return self._labelled(*larger(self._ends(at, add=add) for add in self._directions))

    def epsilon(self, delta: float) -> Bounds:
        """Bounds on the smallest eps >= 0 at delta in (0, 1).

        Raises:
            InvalidParameterError: on a bad argument.
            UnattainableBudgetError: if delta stays larger for every eps.
            NumericalError: as for `hockey_stick`.
        """
        at = check_delta(delta)
        sampled = self.parts.sampled
        if len(sampled) == 1 and self.parts.releases == sampled[0].steps:
            found = sampled[0].accountant.epsilon(1.0, at, tolerance=0.4 * _TOLERANCE)
            return self._labelled(found.lower, found.upper)
        ends = [self.parts.epsilon(at, add=add, tolerance=_TOLERANCE) for add in self._directions]
        return self._labelled(max(lower for lower, _ in ends), max(upper for _, upper in ends))

    def plot(self, least_delta: float = 1e-10) -> "Figure":
        """Delta against eps, one line for each direction, with the interval where lower bounds exist.

        Every point evaluates the profile: for several releases the figure takes some seconds.

        Args:
            least_delta: in (0, 1); the figure ends where delta reaches it, or reaches its limit for large
                eps.

        Returns:
            A matplotlib Figure that is not attached to a window; `figure.savefig("profile.png")`.

        Raises:
            InvalidParameterError: on a bad argument.
            MissingDependencyError: without matplotlib.
            NumericalError: as for `hockey_stick`.
        """
        from dpmech.plots import privacy_profile  # a layer above the engines

        least = check_real(
            "least_delta", least_delta, minimum=0.0, maximum=1.0, open_minimum=True, open_maximum=True
        )
        never = max(self.parts.never(add=add) for add in self._directions)
        last = self.epsilon(min(0.5, max(least, _ABOVE_FLOOR * never))).upper
        # Closer together near 0, where a curve bends.
        grid = [max(last, _SHORTEST) * (index / _POINTS) ** 1.5 for index in range(_POINTS + 1)]
        names = {False: "REMOVE", True: "ADD"} if len(self._directions) > 1 else {False: "both directions"}
        lines = {name: [self.hockey_stick(eps, add=add) for eps in grid] for add, name in names.items()}
        return privacy_profile(grid, lines)

    @functools.cached_property
    def _asked(self) -> dict[tuple[float, bool], tuple[float, float]]:
        return {}

    def _ends(self, eps: float, *, add: bool) -> tuple[float, float]:
        """Lower and upper bound on one direction; cached, as several measures evaluate the same eps."""
        known = self._asked.get((eps, add))
        if known is None:
            known = self._asked[eps, add] = self.parts.delta(eps, add=add, tolerance=_TOLERANCE)
        return known

    def _stick(self, *, add: bool) -> Stick:
        return functools.partial(self._ends, add=add)

    @property
    def _directions(self) -> tuple[bool, ...]:
        """The directions to evaluate: losses of some kinds are the same in both."""
        return (False,) if self.parts.symmetric else (False, True)

    def _labelled(self, lower: float, upper: float) -> Bounds:
        guarantee = self.guarantee
        if not self.parts.only_gaussian:
            guarantee &= BOUND
        return Bounds.derived(lower, upper, guarantee, self.by)


@dataclasses.dataclass(frozen=True, eq=False)
class PrivacyProfile(Answers):
    """Bounds on delta at every eps, for one mechanism or several that run independently on the same people.

    A claim (eps, delta) is one point of a profile. `compose` and `self_compose` are for mechanisms whose
    batches, bins and noise are drawn independently of each other; queries may be chosen adaptively. Two
    releases from one sampled batch are one mechanism, not a product of two: use `dm.ledgers.SharedBatch` for
    them.

    Both directions are kept separate: REMOVE, H(P || Q), is the dataset with the person against the one
    without; ADD is the reverse; delta is the larger one.

    **Guarantee:** `guarantee` holds at all eps at once. A sampling error is *outside* delta: with that
    probability some number of the profile is wrong.

    Args:
        parts: the components of the profile.
        guarantee: the guarantee of the parts.
        by: the provenance of the parts.
        adjacency: the neighbouring relation.
        unit: the unit of privacy.
        of: the mechanism and noise scale of the profile; None for several mechanisms or a profile built by
            hand.

    Examples:
        >>> import dpmech as dm
        >>> once = dm.profile(dm.Identity(1), 2.0, participation=dm.SingleParticipation())
        >>> f"{once.delta(1.0).upper:.4g}", f"{once.self_compose(4).delta(1.0).upper:.4g}"
        ('0.00683', '0.1269')
        >>> sampled = dm.profile(dm.Identity(1000), 1.0, participation=dm.Poisson(0.01))
        >>> round(once.compose(sampled).epsilon(1e-6).upper, 2)
        3.13
    """

    of: "tuple[Mechanism, float] | None" = None

    def compose(self, *others: "PrivacyProfile") -> "PrivacyProfile":
        """The profile of this and other mechanisms, with independent randomness, on the same people.

        A profile does not record its batches, so that this method cannot detect that two releases use the
        same sampled batches. Their sampling is then one event instead of two, and the composed number is *too
        small*, possibly by far. Use `dm.ledgers.SharedBatch` for all releases of one run, and a `dm.Ledger`,
        which charges the batches of a run once, to compose releases of several runs.

        Raises:
            InvalidParameterError: if an argument is not a PrivacyProfile.
            UnsupportedCombinationError: if adjacency or unit differ.
        """
        for other in others:
            if not isinstance(other, PrivacyProfile):
                raise InvalidParameterError("others", other, "PrivacyProfiles")
            if (other.adjacency, other.unit) != (self.adjacency, self.unit):
                raise UnsupportedCombinationError(
                    f"a profile for {other.adjacency.name} and one {other.unit.value} does not compose with "
                    f"one for {self.adjacency.name} and one {self.unit.value}",
                    supported="one adjacency and one unit; releases that read the same sampled batches "
                    "belong in a dm.ledgers.SharedBatch, and those of several runs in a dm.Ledger",
                )
        if not others:
            return self
        every = (self, *others)
        return dataclasses.replace(
            self,
            parts=Composition.joined([one.parts for one in every]),
            guarantee=joined(one.guarantee for one in {id(one): one for one in every}.values()),
            by=Provenance(
                "profile.composed", {"releases": len(every)}, tuple({one.by: None for one in every})
            ),
            of=None,
        )

    def self_compose(self, times: int) -> "PrivacyProfile":
        """The profile of `times` independent runs of this mechanism.

        A sampling error affects all runs at once: its probability counts once.

        Raises:
            InvalidParameterError: if `times` is not an integer >= 1.
        """
        count = check_integer("times", times, minimum=1)
        if count == 1:
            return self
        own = self.parts
        lower, upper = (Fraction(end) * count for end in own.gaussian)
        parts = Composition(
            (rounded_down(lower), rounded_up(upper)),
            tuple(dataclasses.replace(part, steps=count * part.steps) for part in own.sampled),
            tuple((curve, count * repeated) for curve, repeated in own.curves),
            tuple((loss, count * repeated) for loss, repeated in own.exact),
        )
        by = Provenance("profile.composed", {"releases": count}, (self.by,))
        return dataclasses.replace(self, parts=parts, by=by, of=None)

    def private_selection(self, runs: RunCount, *, rel_error: float = 0.01) -> "PrivacyProfile":
        """The profile of releasing only the best of a random number of independent runs of this mechanism.

        It holds if the number of runs is sampled from `runs` and stays secret (`dm.ledgers.PrivateSelection`
        samples it), and if this profile covers the scores that determine the best run, or the scores come
        from public data. Runs may sample their settings at random, all from the same law, if this profile
        covers each setting.

        Args:
            runs: the law of the number of runs, dm.ledgers.PoissonRuns or dm.ledgers.NegativeBinomialRuns.
            rel_error: largest relative excess of hulls over curves, in [1e-3, 0.5].

        Returns:
            A PrivacyProfile with upper bounds only. A sampling error counts once for all runs.

        Raises:
            InvalidParameterError: on a bad argument.
            NumericalError: as for `hockey_stick`.

        References:
            Papernot and Steinke 2022; Koskela, Redberg and Wang 2024; "The price of tuning" in the
            documentation, for the bound.
        """
        if not isinstance(runs, RunCount):
            raise InvalidParameterError(
                "runs", runs, "a dm.ledgers.PoissonRuns or a dm.ledgers.NegativeBinomialRuns"
            )
        hull = check_real("rel_error", rel_error, minimum=1e-3, maximum=0.5)
        curve = selected_curve(self.parts, runs, hull)
        return dataclasses.replace(
            self,
            parts=Composition(curves=((curve, 1),)),
            guarantee=self.guarantee & BOUND,
            by=Provenance("profile.best_of_runs", runs.settings(), (self.by,)),
            of=None,
        )

    def tradeoff(self, alpha: float) -> Bounds:
        """Bounds on the smallest false-negative rate at a false-positive rate: the trade-off curve.

        Consider any test of which of two neighbouring datasets was used (with or without a person; under
        REPLACE_ONE, with one record of a person or another). If its false-positive rate is at most `alpha`,
        its false-negative rate is at least `lower`, for either choice of the null hypothesis.

        Args:
            alpha: in [0, 1].

        Raises:
            InvalidParameterError: on a bad argument.
            NumericalError: as for `hockey_stick`.

        Examples:
            >>> import dpmech as dm
            >>> run = dm.profile(dm.Identity(1), 1.0, participation=dm.SingleParticipation())
            >>> round(run.tradeoff(0.05).lower, 4)
            0.7405

        References:
            Dong, Roth and Su 2022.
        """
        found = self.tpr(check_real("alpha", alpha, minimum=0.0, maximum=1.0))
        return self._labelled(*mirrored(found.lower, found.upper))

    def tpr(self, fpr: float) -> Bounds:
        """Bounds on the true-positive rate of the best attack at a false-positive rate, 1 - `tradeoff(fpr)`.

        Args:
            fpr: false-positive rate in [0, 1]: the share of non-members classified as members, or of members
                classified as non-members, or under REPLACE_ONE of one record mistaken for another. The worst
                case counts.

        Returns:
            Bounds; no attack exceeds the upper one. Errors as for `tradeoff`.

        Examples:
            >>> import dpmech as dm
            >>> run = dm.profile(dm.Identity(1000), 1.0, participation=dm.Poisson(0.01))
            >>> round(run.tpr(0.01).upper, 3)
            0.029
        """
        at = check_real("fpr", fpr, minimum=0.0, maximum=1.0)
        return self._labelled(*larger(best_power(self._stick(add=add), at) for add in self._directions))

    @property
    def advantage(self) -> Bounds:
        """Bounds on the largest difference of true- and false-positive rate: the total variation, delta(0).

        Examples:
            >>> import dpmech as dm
            >>> run = dm.profile(dm.Identity(1), 1.0, participation=dm.SingleParticipation())
            >>> round(run.advantage.upper, 4)
            0.3829
        """
        return self.delta(0.0)

    def gaussian_mu(self, tail: float = 1e-12) -> Bounds:
        """Bounds on the smallest mu with H_a <= G_mu(a) + tail for all a >= 0, in both directions.

        G_mu is the curve of N(mu, 1) against N(0, 1): up to the tail, the mechanism is at least as private as
        one Gaussian release of sensitivity mu and noise 1. `upper` is proved at every a, also between nodes.

        Args:
            tail: in (0, 1); report it together with mu. A smaller tail requires a larger mu.

        Raises:
            InvalidParameterError: on a bad argument, or if delta stays above the tail for every eps.
            NumericalError: if a curve is above the tail up to eps 600, or as for `hockey_stick`.

        Examples:
            >>> import dpmech as dm
            >>> run = dm.profile(dm.Identity(4), 5.0)
            >>> run.gaussian_mu().upper
            0.4
        """
        at = check_real("tail", tail, minimum=0.0, maximum=1.0, open_minimum=True, open_maximum=True)
        if self.parts.only_gaussian:
            return self._labelled(*gaussian_release_mu(self.parts.gaussian, self._stick(add=False), at))
        for add in self._directions:
            if (never := self.parts.never(add=add)) > at:
                raise InvalidParameterError(
                    "tail", at, f"above {up(never)}, what delta stays above however large eps is"
                )
        # Not from what other measures evaluated: lines serve an eps by what came before.
        lower, upper = envelope_mu(
            [self.parts.follow(add=add, tolerance=_TOLERANCE) for add in self._directions], at
        )
        return self._labelled(lower, upper)

    @property
    def zcdp(self) -> Bounds:
        """Bounds on the smallest rho of zero-concentrated DP: D_a <= rho a at every Renyi order a > 1.

        Half of (sensitivity / sigma)^2, summed over all releases. Poisson sampling does not lower it: with
        probability q a step is the unsampled one, which changes D_a / a by at most log(1 / q) / (a - 1), and
        this tends to 0 for large a. Thus rho does not measure amplification by sampling; delta(eps) does.

        Raises:
            UnsupportedCombinationError: if only nodes of the curve are known, which imply no rho.

        Examples:
            >>> import dpmech as dm
            >>> run = dm.profile(dm.Identity(4), 5.0)
            >>> run.zcdp.upper
            0.08

        References:
            Bun and Steinke 2016, Definition 1.1 and Proposition 1.6.
        """
        if self.parts.known:
            raise UnsupportedCombinationError(
                "no rho follows from the nodes of a curve, or from losses on finitely many values",
                supported="profiles of releases that are kept as such, and compositions of these",
            )
        lower, upper = (Fraction(end) for end in self.parts.gaussian)
        for part in self.parts.sampled:
            own = part.zcdp
            lower, upper = lower + own[0], upper + own[1]
        return self._labelled(rounded_down(lower / 2), rounded_up(upper / 2))

    def bayes_success(self, prior: float) -> Bounds:
        """Bounds on the probability of guessing correctly which of two neighbouring datasets was used.

        That is, whether a person took part; under REPLACE_ONE, which of two records was that person's.

        It is (1 - prior) + prior H_a at a = (1 - prior) / prior, in the worse direction.

        Args:
            prior: the prior probability of the one dataset, in [0, 1].

        Returns:
            Bounds, at least max(prior, 1 - prior). Errors as for `tradeoff`.

        Examples:
            >>> import dpmech as dm
            >>> run = dm.profile(dm.Identity(1), 1.0, participation=dm.SingleParticipation())
            >>> round(run.bayes_success(0.5).upper, 4)
            0.6915
        """
        at = check_real("prior", prior, minimum=0.0, maximum=1.0)
        return self._labelled(*larger(bayes_ends(self._stick(add=add), at) for add in self._directions))

    def reconstruction(self, baseline: float) -> Bounds:
        """Bounds on the success rate of reconstructing a record, given the baseline without the release.

        Success is any criterion that is fixed in advance, for a record from any law; the bound is
        `tpr(baseline)`.

        Args:
            baseline: the success rate of the best guess without access to the release, in [0, 1].

        Returns:
            Bounds. The lower bound is that of a membership test; no reconstruction that attains it is known.
            Errors as for `tradeoff`.

        References:
            Hayes, Mahloujifar and Balle 2023, Theorem 2; Kaissis, Hayes, Ziller and Rueckert 2023.
        """
        return self.tpr(check_real("baseline", baseline, minimum=0.0, maximum=1.0))

    def __repr__(self) -> str:
        return f"PrivacyProfile({self.adjacency.name}, {self.by}: {self.guarantee})"
