"""A default that refuses nothing which another accountant could answer, and says who answered."""

import dataclasses

import numpy as np
import pytest

import dpmech as dm
from dpmech.engines.accountant import Accountant, Solution
from dpmech.engines.gaussian_mixture import certified_accountant, certified_bound
from dpmech.engines.gaussian_mixture import pilots as aims
from dpmech.engines.gaussian_mixture.certified_accountant import CertifiedAccountant
from dpmech.engines.gaussian_mixture.dominating_pair import bin_gram
from dpmech.engines.gaussian_mixture.estimate import estimate_delta
from dpmech.engines.gaussian_mixture.pilots import FarAimError
from dpmech.engines.gaussian_mixture.streams import Stage
from dpmech.engines.in_turn import InTurnAccountant, Turn
from dpmech.engines.independent_sum import BlockBound
from dpmech.exceptions import ContradictionError, NumericalError, UnattainableBudgetError, WorkLimitError
from dpmech.mechanism import Mechanism
from dpmech.numerics import BOUND, Bounds, metered, spend
from dpmech.schemes import accountant_for

STRATEGY, SCHEME = dm.LambdaCGD(12, 0.5), dm.BallsInBins(4)


class Fixed(Accountant):
    """Answers with one number, or refuses with one error."""

    def __init__(self, value=None, error=None):
        self.value, self.error = value, error
        self.by, self.guarantee = dm.numerics.Provenance("one"), BOUND
        self.sensitivity = Bounds.bracket(1.0, 1.0, self.by)

    def _answer(self):
        if self.error is not None:
            raise self.error
        return Bounds(0.0, self.value, BOUND, self.by)

    def delta(self, sigma, eps, *, tolerance):
        return self._answer()

    def epsilon(self, sigma, delta, *, tolerance):
        return self._answer()

    def calibrate(self, eps, delta, *, rtol, progress):
        return Solution(self._answer().upper, self._answer())


def answers(accountant):
    told = []
    found = (
        accountant.delta(1.0, 1.0, tolerance=1e-3).upper,
        accountant.epsilon(1.0, 1e-3, tolerance=1e-3).upper,
        accountant.calibrate(1.0, 1e-3, rtol=1e-3, progress=told.append),
    )
    return found, told


@pytest.mark.parametrize("wrong_first", [True, False])
def test_bounds_that_exclude_each_other_are_heard(wrong_first):
    """A fault of one of two proofs: no third one may hide it."""
    wrong, refusing = Fixed(error=ContradictionError("both are proved")), Fixed(error=NumericalError("no"))
    first, second = (wrong, Fixed(2.0)) if wrong_first else (refusing, wrong)
    turns = [Turn(dm.methods.Pld(), lambda: second), Turn(dm.methods.Rdp(), lambda: Fixed(3.0))]
    accountant = InTurnAccountant(first, turns)
    for asked in (
        lambda: accountant.delta(1.0, 1.0, tolerance=1e-3),
        lambda: accountant.epsilon(1.0, 1e-3, tolerance=1e-3),
        lambda: accountant.calibrate(1.0, 1e-3, rtol=1e-3, progress=lambda _: None),
    ):
        with pytest.raises(ContradictionError, match="both are proved"):
            asked()


def never():
    raise AssertionError("asked without need")


def test_the_first_one_answers_alone_where_it_can():
    (delta, eps, solution), told = answers(InTurnAccountant(Fixed(0.5), [Turn(dm.methods.Rdp(), never)]))
    assert (delta, eps, solution.sigma, solution.method, told) == (0.5, 0.5, 0.5, None, [])


def test_where_it_refuses_the_best_of_the_others_does_and_is_named():
    others = [
        Turn(dm.methods.Rdp(), lambda: Fixed(0.7)),
        Turn(dm.methods.Deterministic(), lambda: Fixed(0.6)),
        Turn(dm.methods.Exact(), lambda: Fixed(error=NumericalError("too wide"))),
    ]
    (delta, eps, solution), told = answers(InTurnAccountant(Fixed(error=NumericalError("no")), others))
    assert (delta, eps, solution.sigma) == (0.6, 0.6, 0.6)
    assert solution.method == dm.methods.Deterministic()
    assert solution.samples is solution.randomness is None
    assert told[0].startswith("no;")
    assert any("too wide" in line for line in told)


def test_where_all_refuse_the_first_refusal_stands():
    others = [Turn(dm.methods.Rdp(), lambda: Fixed(error=NumericalError("second")))]
    with pytest.raises(NumericalError, match="first"):
        answers(InTurnAccountant(Fixed(error=NumericalError("first")), others))
    out_of_reach = UnattainableBudgetError(1.0, 1e-3, "sigma would exceed 1e15")
    with pytest.raises(UnattainableBudgetError):
        InTurnAccountant(Fixed(error=out_of_reach), [Turn(dm.methods.Rdp(), never)]).calibrate(
            1.0, 1e-3, rtol=1e-3, progress=print
        )
    # What is no refusal is no reason to ask another.
    with pytest.raises(ValueError, match="fault"):
        answers(InTurnAccountant(Fixed(error=ValueError("fault")), [Turn(dm.methods.Rdp(), never)]))


def test_work_without_end_is_refused_and_what_needs_little_answers():
    def endless(self):
        spend(5.0, what="a run")
        return Bounds(0.0, 0.1, BOUND, self.by)

    costly = type("Costly", (Fixed,), {"_answer": endless})
    for seconds, sigma, method in ((4.0, 0.7, dm.methods.Rdp()), (11.0, 0.1, dm.methods.Deterministic())):
        others = [
            Turn(dm.methods.Rdp(), lambda: Fixed(0.7)),
            Turn(dm.methods.Deterministic(), costly, seconds),
        ]
        (delta, eps, solution), told = answers(InTurnAccountant(Fixed(error=NumericalError("no")), others))
        assert (delta, eps, solution.sigma, solution.method) == (sigma, sigma, sigma, method)
        assert any("a run takes the work to about 5 s, above the 4 s" in line for line in told) is (
            seconds < 5.0
        )
        assert told[-1].startswith(repr(method))
    # Work of the others counts against the budget of whoever asked.
    others = [Turn(dm.methods.Rdp(), lambda: Fixed(0.7)), Turn(dm.methods.Deterministic(), costly, 100.0)]
    with metered(1.0, 1e9):
        (delta, _, _), _ = answers(InTurnAccountant(Fixed(error=NumericalError("no")), others))
    assert delta == 0.7


@pytest.mark.parametrize(
    ("first", "second", "sigma"), [(None, 0.4, 0.4), (0.6, 0.4, 0.6), (None, None, 0.7), (0.9, 0.4, 0.7)]
)
@pytest.mark.parametrize("far", [True, False])
def test_spare_ones_are_asked_where_none_before_has_answered(first, second, sigma, far):
    """And one that samples further up only where the first refused for that, before any proof."""

    def turn(value):
        return lambda: Fixed(error=NumericalError("no")) if value is None else Fixed(value)

    others = [
        Turn(dm.methods.Deterministic(), turn(first)),
        Turn(dm.methods.Certified(), turn(second), spare=True, again=True),
        Turn(dm.methods.Rdp(), turn(0.7)),
    ]
    refusal = FarAimError("too far") if far else NumericalError("no proof held")
    (delta, eps, solution), _ = answers(InTurnAccountant(Fixed(error=refusal), others))
    if not far and first is None:
        sigma = 0.7
    assert (delta, eps, solution.sigma) == (sigma, sigma, sigma)


@pytest.mark.parametrize(("answer", "sigma"), [(0.49, 0.49), (0.51, 0.4)])
def test_samples_that_aim_far_are_drawn_where_the_answer_is_further_still(answer, sigma):
    refusal = FarAimError("too far")
    refusal.point = 0.5
    others = [
        Turn(dm.methods.Deterministic(), lambda: Fixed(answer)),
        Turn(dm.methods.Certified(), lambda: Fixed(0.4), again=True),
        Turn(dm.methods.Certified(), lambda: Fixed(0.3), spare=True, again=True),
        Turn(dm.methods.Rdp(), lambda: Fixed(0.7)),
    ]
    (delta, eps, solution), _ = answers(InTurnAccountant(Fixed(error=refusal), others))
    assert (delta, eps, solution.sigma) == (sigma, sigma, sigma)


@pytest.mark.parametrize(
    "error", [NumericalError("no proof held"), WorkLimitError("it", (2.0, 0.0), (1.0, 1.0))]
)
def test_no_two_turns_spend_the_failure_probability(error):
    """Each has all of it: after one that tested, only turns without samples are left."""
    refusal = FarAimError("too far")
    refusal.point = 0.5
    others = [
        Turn(dm.methods.Certified(), lambda: Fixed(error=error), again=True),
        Turn(dm.methods.Certified(), lambda: Fixed(0.3), spare=True, again=True),
        Turn(dm.methods.Rdp(), lambda: Fixed(0.7)),
    ]
    (delta, eps, solution), _ = answers(InTurnAccountant(Fixed(error=refusal), others))
    assert (delta, eps, solution.sigma) == (0.7, 0.7, 0.7)
    # One that refused before it tested anything has spent nothing.
    others[0] = Turn(dm.methods.Certified(), lambda: Fixed(error=refusal), again=True)
    (delta, eps, solution), _ = answers(InTurnAccountant(Fixed(error=refusal), others))
    assert (delta, eps, solution.sigma) == (0.3, 0.3, 0.3)


def test_one_that_answered_has_spent_it_too():
    """Even where its answer is above the point of the refusal, so that another one might be smaller."""
    refusal = FarAimError("too far")
    refusal.point = 0.5
    others = [
        Turn(dm.methods.Certified(), lambda: Fixed(0.51), again=True),
        Turn(dm.methods.Certified(), never, again=True),
    ]
    (delta, eps, solution), _ = answers(InTurnAccountant(Fixed(error=refusal), others))
    assert (delta, eps, solution.sigma) == (0.51, 0.51, 0.51)


def test_profiles_are_not_sampled_again():
    class Profiled(Fixed):
        def profile(self, sigma, adjacency, *, rel_error):
            return self._answer().upper

    others = [
        Turn(dm.methods.Certified(), never, again=True),
        Turn(dm.methods.Rdp(), lambda: Profiled(0.7)),
    ]
    accountant = InTurnAccountant(Profiled(error=NumericalError("no test would decide")), others)
    assert accountant.profile(1.0, dm.Adjacency.ADD_REMOVE, rel_error=0.1) == 0.7


def test_a_method_whose_beta_is_settled_is_the_one_that_is_named():
    class Settled(Fixed):
        def calibrate(self, eps, delta, *, rtol, progress):
            found = super().calibrate(eps, delta, rtol=rtol, progress=progress)
            return dataclasses.replace(found, method=dm.methods.Certified(beta=1e-9))

    others = [Turn(dm.methods.Certified(), lambda: Settled(0.4))]
    (_, _, solution), _ = answers(InTurnAccountant(Fixed(error=NumericalError("no")), others))
    assert solution.method == dm.methods.Certified(beta=1e-9)


def test_a_certified_accountant_of_short_reach_refuses_before_any_proof(monkeypatch):
    accountant = accountant_for(Mechanism(STRATEGY, SCHEME), None).first
    assert 0.0 < accountant.reach < 0.1
    monkeypatch.setattr(aims, "_AIMS", (0.08,))
    monkeypatch.setattr(certified_accountant, "certify_delta", lambda *_, **__: never())
    told = []
    with pytest.raises(FarAimError, match="8% too high") as refused:
        accountant.calibrate(1.0, 1e-6, rtol=1e-3, progress=told.append)
    # 8 % above the right sigma, which the rough one is near.
    rough = float(told[-1].split()[2].rstrip(":"))
    assert refused.value.point == pytest.approx(1.083 * rough, rel=0.1)


@pytest.mark.parametrize(("excess", "others", "sigma"), [(0.001, 0.4, 0.5), (0.2, 0.4, 0.4), (0.2, 0.6, 0.5)])
def test_a_sigma_far_above_the_right_one_is_compared(excess, others, sigma):
    class Wide(Fixed):
        def calibrate(self, eps, delta, *, rtol, progress):
            return dataclasses.replace(
                super().calibrate(eps, delta, rtol=rtol, progress=progress), excess=excess
            )

    found = InTurnAccountant(Wide(0.5), [Turn(dm.methods.Rdp(), lambda: Fixed(others))]).calibrate(
        1.0, 1e-3, rtol=1e-3, progress=lambda _: None
    )
    assert found.sigma == sigma
    assert found.method == (dm.methods.Rdp() if sigma == others else None)


def test_a_deterministic_sigma_that_holds_stands_where_work_for_a_closer_one_is_refused(monkeypatch):
    program = accountant_for(Mechanism(STRATEGY, SCHEME), dm.methods.Deterministic())
    held, asked = [3e-4, None], []

    def bounded(self, sigma, eps):
        asked.append(sigma)
        upper = held[len(asked) - 1]
        if upper is None:
            raise WorkLimitError("a run", (2.0, 0.0), (1.0, 0.0))
        return upper, self.by

    monkeypatch.setattr(type(program), "_bounded", bounded)
    monkeypatch.setattr(BlockBound, "epsilon", lambda self, sigma, delta, near: 0.0)
    found = program._confirmed(0.0, 2.0, 1e-3, 1e-3, lambda _: None)
    assert len(asked) == 2
    assert found.sigma == asked[0] == 1.0
    asked.clear()
    held[0] = None
    with pytest.raises(WorkLimitError):
        program._confirmed(0.0, 2.0, 1e-3, 1e-3, lambda _: None)


def test_the_default_falls_back_and_certificates_say_so(monkeypatch):
    def hopeless(self, *_, **__):
        raise NumericalError("a proof by sampling would take too long")

    monkeypatch.setattr(CertifiedAccountant, "_search", hopeless)
    cal = dm.calibrate_sigma(STRATEGY, 2.0, 1e-3, participation=SCHEME)
    methods = {
        method: dm.calibrate_sigma(STRATEGY, 2.0, 1e-3, participation=SCHEME, method=method)
        for method in (dm.methods.Rdp(), dm.methods.Deterministic(rel_error=0.1))
    }
    best = min(methods, key=lambda method: methods[method].sigma)
    assert cal.sigma == methods[best].sigma
    assert cal.evidence.accountant == best
    assert cal.guarantee.kind <= dm.Kind.BOUND
    again = dm.Certificate.from_json(cal.certificate().to_json())
    assert again.evidence.accountant == best
    assert dm.verify(again).ok
    with pytest.raises(NumericalError, match="too long"):
        dm.calibrate_sigma(STRATEGY, 2.0, 1e-3, participation=SCHEME, method=dm.methods.Certified())


@pytest.mark.parametrize(("bound", "settles"), [(1e-30, True), (1.0, False)])
def test_where_samples_of_add_would_take_long_a_bound_without_samples_stands_in(monkeypatch, bound, settles):
    asked, drawn = [], []
    monkeypatch.setattr(certified_accountant, "_SMALL_ADD", 0.1)
    monkeypatch.setattr(CertifiedAccountant, "work", 1.0)
    true = certified_bound.weight_stream
    monkeypatch.setattr(
        certified_bound,
        "weight_stream",
        lambda proposal, entropy, stage, *rest: drawn.append(stage) or true(proposal, entropy, stage, *rest),
    )
    accountant = accountant_for(Mechanism(STRATEGY, SCHEME), dm.methods.Certified(), np.random.default_rng(1))
    accountant.settled_add = lambda sigma, eps: asked.append((sigma, eps)) or bound
    found = accountant.delta(1.2, 4.0, tolerance=1e-3)
    assert asked == [(1.2, 4.0)]
    assert (Stage.ADD_MAIN in drawn) is not settles
    assert Stage.REMOVE_MAIN in drawn
    assert 0.0 < found.lower < found.upper < 0.01


def test_the_bound_without_samples_is_one_of_the_add_direction():
    program = accountant_for(Mechanism(STRATEGY, SCHEME), dm.methods.Deterministic())
    for sigma, eps in ((1.2, 2.0), (1.2, 0.5), (3.0, 0.3)):
        pair = estimate_delta(
            bin_gram(STRATEGY, 4).scaled(sigma**-2), eps, rel_error=0.02, rng=np.random.default_rng(2)
        )
        upper = program.upper_add(sigma, eps)
        assert pair.add.lower < upper < 3.0 * pair.add.upper
