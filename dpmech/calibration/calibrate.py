"""Calibration: the noise scale that a budget requires, and the budget that a noise scale meets."""

import concurrent.futures
import dataclasses
import math

import numpy as np

from dpmech.calibration.evaluate import plain_scale, profile
from dpmech.certificates import (
    AdaptiveClip,
    Certificate,
    Claim,
    Evidence,
    ProfileNodes,
    check_unedited,
    with_checksum,
)
from dpmech.engines import Method, PrivacyProfile, Progress, check_method
from dpmech.exceptions import (
    InvalidParameterError,
    NumericalError,
    UnattainableBudgetError,
    UnsupportedCombinationError,
)
from dpmech.guards import check_delta, check_eps, check_integer, check_real, check_rng, check_sigma
from dpmech.mechanism import (
    UNSTATED,
    Adjacency,
    Mechanism,
    Participation,
    PrivacyBudget,
    Strategy,
    Unstated,
    mechanism_of,
)
from dpmech.numerics import Bounds, between, running_on, typed, up, within_float64
from dpmech.schemes import accountant_for, effective_method

# The tolerance of a calibration at the default rtol, so that delta at its sigma agrees with the calibration.
_EVALUATION_TOLERANCE = 4e-4
# Tolerance of eps, if the claim of a given sigma has to be stated again; and how far the given sigma may then
# be above the smallest one for that eps.
_EVALUATION_STEP, _GIVEN = 1e-6, 1e-3


@dataclasses.dataclass(frozen=True)
class Calibration(Claim):
    """A noise scale, and the assumptions of its guarantee; returned by `calibrate_sigma`.

    Printed numbers are rounded conservatively: the budget is met at the sigma that is shown.

    Examples:
        >>> import dpmech as dm
        >>> print(dm.calibrate_sigma(dm.LambdaCGD(3900, 0.9), 8.0, 1e-5, participation=dm.MinSep(390, 10)))
        sigma 4.35452 at clip norm 1: exact
        correlated noise: use NoiseStream; no number for DP-SGD tools
        eps 8, delta 1e-05, add_remove, unit example; achieved eps in [7.99999, 8]; sensitivity 7.25477
        at 1 % false positives an attack finds at most 99.97 % of the examples, from (eps, delta) only; ...
        RMSE 19.7136, MaxSE 27.537, in units of the clip norm
        LambdaCGD(n=3900, lam=0.9)
        MinSep(min_sep=390, max_participations=10)
    """

    def __str__(self) -> str:
        budget, achieved = self.budget, between(self.achieved.lower, self.achieved.upper)
        return "\n".join(
            [
                f"sigma {up(self.sigma)} at clip norm 1: {self.guarantee}",
                self.sigma_use,
                f"eps {typed(budget.eps)}, delta {typed(budget.delta)}, {self.adjacency.value}, "
                f"unit {self.unit.value}; "
                f"achieved eps in {achieved}; sensitivity {up(self.sensitivity.upper)}",
                self.attack_words,
                f"RMSE {up(self.rmse())}, MaxSE {up(self.max_se())}, in units of the clip norm",
                repr(self.strategy),
                repr(self.participation),
            ]
        )

    def certificate(
        self,
        clip_norm: float | AdaptiveClip | None = None,
        expected_batch_size: float | None = None,
        *,
        dataset_size: int | None = None,
        profile: PrivacyProfile | None = None,
    ) -> Certificate:
        """The calibration as a certificate, which can be saved, verified and passed to an optimizer.

        Args:
            clip_norm: the clip norm that the trainer must use, > 0; or an AdaptiveClip, by which it changes;
                None leaves it unspecified.
            expected_batch_size: the public denominator that the trainer must use, > 0: a planned number, not
                computed from the data; None takes that of the calibration, if there is one.
            dataset_size: a public number of examples, >= 1; under ADD_REMOVE the certificate states that the
                guarantee does not hide it. None takes that of the calibration, if there is one.
            profile: a result of `profile()` whose nodes are stored as further evidence: `verify` checks them,
                and a `Ledger` composes them instead of the budget. A profile without nodes is omitted,
                because it is fast to recompute.

        Raises:
            InvalidParameterError: if an argument is invalid, such as a profile of another mechanism.
            UnsupportedCombinationError: if a profile has nodes although it is known in closed form.
            CertificateError: if this calibration was changed after `calibrate_sigma` returned it.

        Examples:
            >>> import dpmech as dm
            >>> certificate = dm.calibrate_sigma(dm.Identity(8), 1.0, 1e-5).certificate(clip_norm=1.0)
            >>> certificate.to_json().splitlines()[0]
            '{"guarantee": "exact",'
        """
        check_unedited(self)
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        given = {
            "clip_norm": clip_norm,
            "expected_batch_size": expected_batch_size,
            "dataset_size": dataset_size,
        }
        own |= {name: value for name, value in given.items() if value is not None}
        if profile is not None:
            own["nodes"] = ProfileNodes.of(profile, self.mechanism, self.sigma)
        return with_checksum(Certificate(**own))

    def profile(
        self,
        *,
        rel_error: float = 0.01,
        method: Method | None = None,
        rng: np.random.Generator | int | None = None,
        executor: concurrent.futures.Executor | None = None,
    ) -> PrivacyProfile:
        """The whole curve delta(eps) at this noise scale; arguments as for `dpmech.profile`.

        The budget of the calibration is one point of this curve. Under Balls-in-Bins, the curve is computed
        from separate samples, so it does not reproduce that point to the last digit. `budget` remains valid.
        """
        return profile(
            self.mechanism, self.sigma, rel_error=rel_error, method=method, rng=rng, executor=executor
        )


def calibrate_sigma(
    strategy: Strategy | Mechanism,
    eps: float,
    delta: float,
    *,
    participation: Participation | None = None,
    adjacency: Adjacency | Unstated = UNSTATED,
    rtol: float = 1e-3,
    method: Method | None = None,
    rng: np.random.Generator | int | None = None,
    progress: Progress | None = None,
    executor: concurrent.futures.Executor | None = None,
    expected_batch_size: float | None = None,
    dataset_size: int | None = None,
) -> Calibration:
    """The smallest noise scale whose mechanism is (eps, delta)-differentially private.

    Args:
        strategy: C, over the number of steps of the run; or a Mechanism, which also sets participation and
            adjacency.
        eps: > 0.
        delta: in (0, 1).
        participation: which examples take part when; None is EveryStep, which is conservative.
        adjacency: ADD_REMOVE, ZERO_OUT or REPLACE_ONE, if the participation is covered under it.
        rtol: sigma is at most (1 + rtol) times the smallest valid one, in [1e-6, 0.5]. Ignored if sigma has a
            closed form. If only a bound on the sensitivity is known, or the method is Rdp, the smallest valid
            sigma is the smallest that the bound certifies.
        method: None for the best valid accountant, which never gives an estimate; or a method object.
        rng: for randomised methods only; None uses entropy from the operating system. Only in this case is
            the error of a certified sample inside delta.
        progress: called with one line of text for every probe.
        executor: where randomised methods generate their samples, such as `dm.Workers(4)`; None is this
            process. It does not change the result.
        expected_batch_size: the public denominator that the trainer must use, > 0: a planned number, such as
            128, not computed from the data. It does not affect sigma.
        dataset_size: a public number of examples, as for `Calibration.certificate`; it does not affect sigma.

    Returns:
        A Calibration, rounded conservatively: `achieved.upper <= eps` and the upper bound on delta at eps is
        at most `delta`, both re-checked at the returned sigma. `guarantee` states the kind of guarantee.

    Raises:
        InvalidParameterError: if an argument is invalid.
        UnsupportedCombinationError: if no theorem covers the combination.
        UnattainableBudgetError: if no finite sigma meets the budget.
        NumericalError: if a tolerance is missed.

    Examples:
        >>> import dpmech as dm
        >>> cal = dm.calibrate_sigma(dm.LambdaCGD(3900, 0.9), 8.0, 1e-5, participation=dm.MinSep(390, 10))
        >>> round(cal.sigma, 3), round(cal.rmse(), 2), str(cal.guarantee)
        (4.355, 19.71, 'exact')
    """
    budget = PrivacyBudget(eps, delta)
    mechanism = mechanism_of(strategy, participation, adjacency)
    tolerance = check_real("rtol", rtol, minimum=1e-6, maximum=0.5)
    if expected_batch_size is not None:
        check_real("expected_batch_size", expected_batch_size, minimum=0.0, open_minimum=True)
    if dataset_size is not None:
        check_integer("dataset_size", dataset_size, minimum=1)
    other = f"eps {typed(budget.eps)} and delta {typed(budget.delta)}"
    with within_float64(other), running_on(executor):
        accountant = accountant_for(mechanism, check_method(method), check_rng(rng))
        solution = accountant.calibrate(
            budget.eps, budget.delta, rtol=tolerance, progress=progress if progress is not None else _silent
        )
    if not (math.isfinite(solution.sigma) and solution.sigma > 0.0 and solution.achieved.upper <= budget.eps):
        raise NumericalError(f"calibration ended on the wrong side: {solution!r} for {budget!r}")
    found = Calibration(
        mechanism=mechanism,
        budget=budget,
        sigma=solution.sigma,
        sensitivity=accountant.sensitivity,
        achieved=solution.achieved,
        evidence=Evidence(
            accountant=solution.method or effective_method(mechanism.participation, method),
            rtol=tolerance,
            rng_supplied=rng is not None,
            samples=solution.samples,
            randomness=solution.randomness,
        ),
        expected_batch_size=expected_batch_size,
        dataset_size=dataset_size,
    )
    return with_checksum(found)


def certify_sigma(
    strategy: Strategy | Mechanism,
    sigma: float,
    *,
    eps: float | None = None,
    delta: float | None = None,
    participation: Participation | None = None,
    adjacency: Adjacency | Unstated = UNSTATED,
    method: Method | None = None,
) -> Calibration:
    """The claim that a given noise scale supports, for the certificate of a run with a fixed sigma.

    Args:
        strategy: C, or a Mechanism.
        sigma: standard deviation of Z at clip norm 1, > 0.
        eps: > 0; the claim then states delta at this eps. Pass either eps or delta.
        delta: in (0, 1); the claim then states eps at this delta.
        participation: as for `calibrate_sigma`.
        adjacency: as for `calibrate_sigma`.
        method: as for `calibrate_sigma`, except that methods with random samples are refused, because their
            random numbers belong to a search.

    Returns:
        A Calibration with this sigma, whose budget is (eps, the upper bound on delta), or (the upper bound on
        eps, delta).

    Raises:
        InvalidParameterError: if an argument is invalid.
        UnsupportedCombinationError: if no theorem covers the combination, or the method uses samples.
        UnattainableBudgetError: if the privacy loss is zero, or nothing can be proved.
        NumericalError: if a tolerance is missed.

    Examples:
        >>> import dpmech as dm
        >>> cal = dm.certify_sigma(dm.Identity(100), 1.1, delta=1e-5, participation=dm.Poisson(0.01))
        >>> dm.verify(cal.certificate()).ok, cal.budget.eps == cal.achieved.upper
        (True, True)
    """
    checked = check_sigma(sigma)
    mechanism = mechanism_of(strategy, participation, adjacency)
    used = effective_method(mechanism.participation, check_method(method))
    if used.error > 0.0:
        raise UnsupportedCombinationError(
            f"{used!r} draws samples, but a certificate of a given sigma uses none",
            supported="Deterministic() and Rdp()",
        )
    with plain_scale(mechanism, checked, "the budget"):
        accountant = accountant_for(mechanism, method)
        if (eps is None) == (delta is None):
            raise InvalidParameterError("delta", delta, "given, or else eps, and not both")
        if delta is not None:
            at = check_delta(delta)
        else:
            at = accountant.delta(checked, check_eps(eps), tolerance=_EVALUATION_TOLERANCE).upper
        if not 0.0 < at < 1.0:
            raise UnattainableBudgetError(eps or 0.0, at, f"sigma={checked!r} gives no delta in (0, 1) there")
        found = accountant.epsilon(checked, at, tolerance=_EVALUATION_TOLERANCE)
        upper = found.upper if eps is None else check_eps(eps)
        if not 0.0 < upper < math.inf:
            raise UnattainableBudgetError(upper, at, f"sigma={checked!r} gives no eps > 0 there")
        step = _EVALUATION_STEP
        while accountant.delta(checked, upper, tolerance=_EVALUATION_TOLERANCE).upper > at:
            # Both are upper bounds with separate tolerances.
            upper, step = upper * (1.0 + step), 2.0 * step
            if math.isinf(upper):
                raise NumericalError(f"no eps at which delta is at most {at!r} at sigma={checked!r}")
    achieved = Bounds.derived(min(found.lower, upper), upper, accountant.guarantee, found.by)
    own = Evidence(accountant=used, rtol=_GIVEN, rng_supplied=False)
    budget = PrivacyBudget(upper, at)
    return with_checksum(Calibration(mechanism, budget, checked, accountant.sensitivity, achieved, own))


def _silent(line: str) -> None:
    del line
