"""Mechanisms and claims in a ledger, against closed forms, enumerations and plain convolutions."""

import json
import math

import mpmath
import numpy as np
import pytest

import dpmech as dm
from dpmech.certificates import checksum_of_document

REPLACE = dm.Adjacency.REPLACE_ONE
LAPLACE = dm.ledgers.Laplace(scale=2.0, sensitivity=1.0)
GEOMETRIC = dm.ledgers.DiscreteLaplace(3.0, 2)
ANSWER = dm.ledgers.RandomizedResponse(0.75)
CLAIM = dm.ledgers.ApproximateDP(0.3, 1e-7)
RHO = dm.ledgers.ZCDP(0.02)
NOISE = dm.ledgers.Gaussian(sigma=4.0, sensitivity=1.0)
TEST = dm.calibrate_sigma(dm.Identity(1), 0.5, 1e-6, participation=dm.SingleParticipation())
REFUSED, INVALID = dm.UnsupportedCombinationError, dm.InvalidParameterError


def listed(*mechanisms, adjacency=dm.Adjacency.ADD_REMOVE):
    book = dm.Ledger(adjacency)
    for number, (mechanism, count) in enumerate(mechanisms):
        book.add_mechanism(f"entry {number}", mechanism, count=count)
    return book


def laws(mechanism):
    """Rows of P and Q of one release with finitely many losses, from its definition, with 50 digits."""
    mpmath.mp.dps = 50
    if isinstance(mechanism, dm.ledgers.RandomizedResponse):
        truth, many = mpmath.mpf(mechanism.truth_prob), mechanism.categories
        other = (1 - truth) / (many - 1)
        return [(truth, other), (other, truth)] + [(other, other)] * (many - 2)
    if isinstance(mechanism, dm.ledgers.DiscreteLaplace):
        t = mpmath.exp(-1 / mpmath.mpf(mechanism.scale))
        norm, shift = (1 - t) / (1 + t), mechanism.sensitivity
        inner = [(norm * t**y, norm * t ** (shift - y)) for y in range(1, shift)]
        return [(1 / (1 + t), t**shift / (1 + t)), *inner, (t**shift / (1 + t), 1 / (1 + t))]
    eps, delta = mpmath.mpf(mechanism.eps), mpmath.mpf(getattr(mechanism, "delta", 0.0))
    high = (1 - delta) / (1 + mpmath.exp(-eps))
    low = (1 - delta) / (1 + mpmath.exp(eps))
    return [(high, low), (low, high), (delta, 0), (0, delta)]


def delta_by_types(mechanism, count, eps):
    """Sum over how often each kind of output occurs: exact for laws with few different losses."""
    kinds = {}
    for p, q in laws(mechanism):
        if p > 0:
            key = mpmath.nstr(mpmath.log(q / p), 25) if q else "never"
            old = kinds.get(key, (0, 0))
            kinds[key] = (old[0] + p, old[1] + q)
    rows = list(kinds.values())
    total = mpmath.mpf(0)

    def visit(place, left, ways, p, q):
        nonlocal total
        if place == len(rows) - 1:
            p, q = p * rows[place][0] ** left, q * rows[place][1] ** left
            total += ways * max(mpmath.mpf(0), p - mpmath.exp(mpmath.mpf(eps)) * q)
            return
        for n in range(left + 1):
            one_p, one_q = rows[place]
            visit(place + 1, left - n, ways * mpmath.binomial(left, n), p * one_p**n, q * one_q**n)

    visit(0, count, mpmath.mpf(1), mpmath.mpf(1), mpmath.mpf(1))
    return total


def holds(found, truth, *, slack=0.0):
    return found.lower * (1 - slack) <= truth <= found.upper * (1 + slack)


@pytest.mark.parametrize(
    ("mechanism", "count", "eps"),
    [
        (ANSWER, 1, 0.4),
        (ANSWER, 30, 12.0),
        (ANSWER, 30, 0.0),
        (dm.ledgers.RandomizedResponse(0.4, 5), 1, 0.9),
        (dm.ledgers.RandomizedResponse(0.4, 5), 12, 4.0),
        (dm.ledgers.RandomizedResponse(0.500001), 20, 1e-5),
        (GEOMETRIC, 1, 0.2),
        (GEOMETRIC, 20, 4.0),
        (dm.ledgers.DiscreteLaplace(0.7, 3), 6, 9.0),
        (dm.ledgers.DiscreteLaplace(10.0), 100, 2.0),
    ],
)
def test_releases_with_few_losses_are_as_their_enumeration_says(mechanism, count, eps):
    found = listed((mechanism, count), adjacency=mechanism.adjacency).delta(eps)
    truth = delta_by_types(mechanism, count, eps)
    assert holds(found, truth)
    assert found.upper - found.lower <= 1e-8 * truth
    # A planted fault, of one part in a million, is found.
    assert not holds(found, truth * (1 + 1e-6))
    assert not holds(found, truth * (1 - 1e-6))


@pytest.mark.parametrize(
    ("claim", "count", "eps"),
    [(dm.ledgers.PureDP(0.1), 50, 1.0), (CLAIM, 20, 2.0), (CLAIM, 1, 0.1), (dm.ledgers.PureDP(3.0), 5, 9.0)],
)
def test_the_upper_end_of_claims_is_attained_and_the_lower_one_is_0(claim, count, eps):
    found, truth = listed((claim, count)).delta(eps), delta_by_types(claim, count, eps)
    assert found.lower == 0.0
    assert truth <= found.upper <= truth * (1 + 1e-9)


def test_claims_add_up_where_that_is_all_that_delta_allows():
    book = listed((CLAIM, 3), (dm.ledgers.PureDP(0.2), 2))
    spent = -math.expm1(3 * math.log1p(-1e-7))
    assert book.epsilon(spent * (1 + 1e-12)).upper <= 1.3 * (1 + 1e-12)
    assert book.usual_delta == pytest.approx(3.3e-7)
    assert book.delta(1.4).upper == pytest.approx(spent, rel=1e-12)
    with pytest.raises(dm.UnattainableBudgetError, match="claims alone fail"):
        book.epsilon(2e-7)


@pytest.mark.parametrize("eps", [0.0, 0.1, 0.3, 0.49999])
def test_one_laplace_release_is_as_its_closed_form(eps):
    mpmath.mp.dps = 40
    truth = 1 - mpmath.exp((mpmath.mpf(eps) - mpmath.mpf(1) / 2) / 2)
    found = listed((LAPLACE, 1)).delta(eps)
    assert holds(found, truth)
    assert found.upper <= truth * (1 + 1e-10)


def laplace_sums(ratio, count, eps, *, cells=4000):
    """Bounds on delta of a composition by convolution of merged, and of moved, outputs on a plain grid."""
    step = 2 * ratio / cells
    edges = -ratio + step * np.arange(cells + 1)
    inner = 0.5 * math.exp(-0.5 * ratio) * np.diff(np.exp(0.5 * edges))
    # All of a cell at its lower, and at its upper edge.
    ends = []
    for shift in (0, 1):
        one = np.zeros(cells + 1)
        one[shift : cells + shift] = inner
        one[-1] += 0.5
        one[0] += 0.5 * math.exp(-ratio)
        law = one
        for _ in range(count - 1):
            law = np.convolve(law, one)
        losses = -ratio * count + step * np.arange(law.size)
        ends.append(float(np.sum(law * np.maximum(0.0, -np.expm1(eps - losses)))))
    return ends


@pytest.mark.parametrize(("ratio", "count", "eps"), [(0.5, 2, 0.3), (0.5, 4, 1.2), (2.0, 3, 3.0)])
def test_several_laplace_releases_lie_between_two_plain_convolutions(ratio, count, eps):
    found = listed((dm.ledgers.Laplace(scale=1.0, sensitivity=ratio), count)).delta(eps)
    low, high = laplace_sums(ratio, count, eps)
    assert low <= found.upper * (1 + 1e-12)
    assert found.lower <= high * (1 + 1e-12)
    assert found.upper <= high + 1e-12
    assert found.lower >= low - 1e-12
    assert found.upper - found.lower <= 1e-6 * found.upper
    assert high - low < 0.02 * high  # the oracle would see a fault of 2 %


def two_laplace(ratio, eps):
    """Delta of two releases by quadrature of the closed form of one over the loss of the other."""
    mpmath.mp.dps = 30
    e = mpmath.mpf(ratio)

    def one(at):
        if at >= e:
            return mpmath.mpf(0)
        return 1 - mpmath.exp(at) if at <= -e else 1 - mpmath.exp((at - e) / 2)

    def density(loss):
        return mpmath.exp((loss - e) / 2) / 4 * one(eps - loss)

    points = sorted({-e, e, min(max(mpmath.mpf(eps) - e, -e), e), min(max(mpmath.mpf(eps) + e, -e), e)})
    return one(eps - e) / 2 + one(eps + e) * mpmath.exp(-e) / 2 + mpmath.quad(density, points)


@pytest.mark.parametrize(("ratio", "eps"), [(0.5, 0.3), (1.0, 1.9), (5.0, 4.0)])
def test_two_laplace_releases_are_as_their_integral(ratio, eps):
    found = listed((dm.ledgers.Laplace(scale=1.0, sensitivity=ratio), 2)).delta(eps)
    truth = two_laplace(ratio, eps)
    assert holds(found, truth)
    assert found.upper - found.lower <= 1e-5 * truth
    assert not holds(found, truth * 1.0001)


def test_eps_next_to_the_largest_loss_has_both_ends():
    found = listed((dm.ledgers.Laplace(1.0, 1.0), 2)).epsilon(1e-6)
    assert two_laplace(1.0, found.upper) <= 1e-6 <= two_laplace(1.0, found.lower)
    assert found.upper - found.lower <= 1e-5


@pytest.mark.parametrize("ratio", [0.05, 1.0])
def test_many_laplace_releases_lie_between_two_transforms(ratio):
    """Outputs of a cell moved to either edge, with powers of the FFT of that law."""
    count, cells = 64, 4000
    step, size = 2 * ratio / cells, 2**18
    inner = 0.5 * math.exp(-0.5 * ratio) * np.diff(np.exp(0.5 * (-ratio + step * np.arange(cells + 1))))
    ends = []
    found = listed((dm.ledgers.Laplace(1.0, ratio), count)).epsilon(1e-4)
    for shift in (0, 1):
        one = np.zeros(size)
        one[shift : cells + shift] = inner
        one[[0, cells]] += 0.5 * math.exp(-ratio), 0.5
        law = np.fft.irfft(np.fft.rfft(one) ** count, size)
        losses = -ratio * count + step * np.arange(size)
        eps = found.upper if shift == 0 else found.lower
        ends.append(float(np.sum(law * np.maximum(0.0, -np.expm1(eps - losses)))))
    assert ends[0] <= 1e-4 <= ends[1]
    assert found.upper - found.lower <= 1e-5 * found.upper
    assert ends[0] > 0.97e-4
    assert ends[1] < 1.03e-4  # the oracle would see a fault of 3 % of delta


def test_many_small_losses_are_not_lost_in_rounding_errors():
    found = listed((dm.ledgers.Laplace(1e3, 1.0), 1_000)).epsilon(1e-6)
    assert found.upper - found.lower <= 5e-4 * found.upper


def test_a_gaussian_release_is_what_its_certificate_would_be():
    found = listed((NOISE, 9)).epsilon(1e-6)
    expected = dm.epsilon(dm.Identity(1), 4.0 / 3.0, 1e-6, participation=dm.SingleParticipation())
    assert found.upper == pytest.approx(expected.upper, rel=1e-12)
    assert str(listed((NOISE, 9)).guarantee) == "exact"


def test_zcdp_claims_cover_the_mechanisms_that_have_them_and_add_up():
    """A Gaussian release of mu has rho = mu^2 / 2, and lies below whatever is claimed for rho."""
    for eps in (0.0, 0.3, 2.0):
        truth = listed((NOISE, 9)).delta(eps)
        claimed = listed((dm.ledgers.ZCDP(0.5 / 16.0), 9)).delta(eps)
        assert claimed.lower == 0.0
        assert truth.upper <= claimed.upper
    split = listed((RHO, 2), (dm.ledgers.ZCDP(0.04), 1)).epsilon(1e-6).upper
    assert split == pytest.approx(listed((dm.ledgers.ZCDP(0.08), 1)).epsilon(1e-6).upper, rel=1e-3)
    # The conversion of Bun and Steinke, which is looser.
    assert split < 0.08 + 2 * math.sqrt(0.08 * math.log(1e6))


def test_zcdp_next_to_gaussian_noise_is_never_more_than_their_moments():
    book = listed((RHO, 20), (NOISE, 10))
    by_moments = book.epsilon(1e-6, method=dm.methods.Rdp()).upper
    assert book.epsilon(1e-6).upper <= by_moments
    rho = 20 * 0.02 + 10 / 32
    assert by_moments == pytest.approx(listed((dm.ledgers.ZCDP(rho), 1)).epsilon(1e-6).upper, rel=1e-3)
    # The mechanism that the claim may stand for.
    assert listed((NOISE, 10), (dm.ledgers.Gaussian(5.0, 1.0), 20)).epsilon(1e-6).lower < by_moments


def test_a_rho_beyond_any_curve_still_has_moments():
    found = listed((dm.ledgers.ZCDP(500.0), 100)).epsilon(1e-6)
    assert 5e4 < found.upper < 6e4


def test_different_mechanisms_compose_to_both_ends():
    """The loss of randomised response, summed over outcomes, next to the closed form of Laplace noise."""
    laplace = dm.ledgers.Laplace(scale=2.0, sensitivity=1.0, adjacency=REPLACE)
    book = listed((laplace, 1), (ANSWER, 5), adjacency=REPLACE)
    e0 = math.log(3.0)
    for eps in (0.5, 2.0, 4.0):
        truth = 0.0
        for n in range(6):
            left = eps - (2 * n - 5) * e0
            one = 0.0 if left >= 0.5 else 1 - math.exp(left if left <= -0.5 else (left - 0.5) / 2)
            truth += math.comb(5, n) * 0.75**n * 0.25 ** (5 - n) * one
        found = book.delta(eps)
        assert holds(found, truth, slack=1e-12)
        assert found.upper - found.lower <= 1e-3 * truth


def test_claims_of_one_eps_share_a_lattice_that_holds_them():
    """Nothing fails with the product of probabilities, and then all are randomised responses of one eps."""
    book = listed((dm.ledgers.PureDP(0.5), 3), (dm.ledgers.ApproximateDP(0.5, 1e-4), 2))
    for eps in (0.2, 1.0):
        stay = (1 - mpmath.mpf(1e-4)) ** 2
        truth = 1 - stay * (1 - delta_by_types(dm.ledgers.PureDP(0.5), 5, eps))
        assert truth <= book.delta(eps).upper <= truth * (1 + 1e-9)


@pytest.mark.parametrize(("scale", "shift"), [(10.0, 2), (7.0, 3)])
def test_different_grids_compose_to_both_ends(scale, shift):
    """Losses of two kinds by summing over all outcomes; at most one of them stays where it is."""
    other = dm.ledgers.DiscreteLaplace(scale, shift)
    found = listed((GEOMETRIC, 2), (other, 2)).delta(0.9)
    rows = [(mpmath.mpf(1), mpmath.mpf(1))]
    for mechanism in (GEOMETRIC, GEOMETRIC, other, other):
        rows = [(p * a, q * b) for p, q in rows for a, b in laws(mechanism)]
    truth = mpmath.fsum(max(mpmath.mpf(0), p - mpmath.exp(mpmath.mpf(0.9)) * q) for p, q in rows)
    assert holds(found, truth)
    assert found.upper - found.lower <= 2e-3 * truth
    assert not holds(found, truth * 1.01)


def test_mechanisms_compose_with_certified_releases_and_counts():
    book = listed((GEOMETRIC, 3), (NOISE, 1))
    book.add("accuracy", TEST)
    mu = math.hypot(0.25, TEST.sensitivity.upper / TEST.sigma)
    alone = dm.ledgers.Gaussian(1.0, mu)
    eps = 2.0
    truth = mpmath.mpf(0)
    rows = laws(GEOMETRIC)
    for one in rows:
        for two in rows:
            for three in rows:
                loss = sum(mpmath.log(p / q) for p, q in (one, two, three))
                left = float(eps - loss)
                a, b = (mpmath.ncdf(-left / mu + side * mu / 2) for side in (1, -1))
                truth += one[0] * two[0] * three[0] * (a - mpmath.exp(left) * b)
    found = book.delta(eps)
    assert holds(found, truth, slack=1e-9)
    assert found.upper - found.lower <= 1e-3 * truth
    assert listed((alone, 1)).epsilon(1e-6).upper < book.epsilon(1e-6).lower
    before = book.epsilon(1e-6)
    book.add_counts("classes", dm.DiscreteGaussian(200))
    assert before.lower < book.epsilon(1e-6).upper < before.upper + 0.1


@pytest.mark.parametrize("method", [None, dm.methods.Rdp()])
def test_moments_and_profiles_agree_within_what_moments_lose(method):
    book = listed((dm.ledgers.Laplace(20.0, 1.0), 100))
    found, tight = book.epsilon(1e-6, method=method), book.epsilon(1e-6)
    assert tight.lower <= found.upper <= 1.1 * tight.upper
    assert book.delta(2.5, method=method).upper >= book.delta(2.5).lower


@pytest.mark.parametrize("order", [1.5, 2.0, 32.0])
def test_renyi_divergences_are_those_of_the_laws(order):
    mpmath.mp.dps = 40
    for mechanism in (ANSWER, GEOMETRIC, dm.ledgers.PureDP(0.5)):
        moment = mpmath.fsum(p**order * q ** (1 - order) for p, q in laws(mechanism) if p and q)
        truth = mpmath.log(moment) / (order - 1)
        assert truth <= mechanism.renyi(order) <= truth * (1 + 1e-9)
    e = mpmath.mpf(1) / 2
    first, second = order * mpmath.exp((order - 1) * e), (order - 1) * mpmath.exp(-order * e)
    truth = mpmath.log((first + second) / (2 * order - 1)) / (order - 1)
    assert truth <= LAPLACE.renyi(order) <= truth * (1 + 1e-4)
    assert RHO.renyi(order) == pytest.approx(0.02 * order, rel=1e-15)
    assert NOISE.renyi(order) == pytest.approx(order / 32, rel=1e-15)
    assert CLAIM.renyi(order) == math.inf


def distribution(mechanism):
    from dp_accounting.pld import privacy_loss_distribution as pld
    from dp_accounting.pld.common import DifferentialPrivacyParameters

    step = {"value_discretization_interval": 1e-4}
    if mechanism is LAPLACE:
        return pld.from_laplace_mechanism(2.0, 1.0, **step)
    if mechanism is GEOMETRIC:
        return pld.from_discrete_laplace_mechanism(1.0 / 3.0, 2, **step)
    if mechanism is ANSWER:
        return pld.from_randomized_response(0.5, 2, **step)
    return pld.from_privacy_parameters(DifferentialPrivacyParameters(0.3, 1e-7), **step)


@pytest.mark.parametrize("mechanism", [LAPLACE, GEOMETRIC, ANSWER, CLAIM])
@pytest.mark.parametrize("count", [1, 10, 100])
def test_dp_accounting_is_never_contradicted(mechanism, count):
    """Its distributions are pessimistic: at least the truth, and at most a step of 1e-4 a release above."""
    other = distribution(mechanism).self_compose(count)
    book = listed((mechanism, count), adjacency=mechanism.adjacency)
    for delta in (1e-2, 1e-4):
        theirs, found = other.get_epsilon_for_delta(delta), book.epsilon(delta)
        assert found.lower <= theirs * (1 + 1e-6) + 1e-9
        assert found.upper <= theirs * (1 + 1e-4) + 1e-4
        assert theirs <= found.upper + 1e-4 * (count + 1)


# ---- refusals, budgets, files


def with_budget(accounting=None):
    return dm.Ledger(budget=dm.PrivacyBudget(4.0, 1e-5), accounting=accounting)


USERS = dm.ledgers.Laplace(2.0, 1.0, unit=dm.Unit.USER)


@pytest.mark.parametrize(
    ("book", "mechanism", "settings", "error", "words"),
    [
        (dm.Ledger, ANSWER, {}, REFUSED, "'a' is for REPLACE_ONE, the ledger for ADD_REMOVE"),
        (lambda: listed((LAPLACE, 1)), USERS, {}, REFUSED, "hides one user"),
        (lambda: listed((LAPLACE, 10**6)), LAPLACE, {"count": 1}, INVALID, "count"),
        (dm.Ledger, LAPLACE, {"count": 0}, INVALID, "count"),
        (dm.Ledger, TEST, {}, INVALID, "mechanism"),
        (
            with_budget,
            LAPLACE,
            {},
            REFUSED,
            "as Gaussian differential privacy.*RenyiAccounting.*ClaimAccounting",
        ),
        (with_budget, RHO, {}, REFUSED, r"RenyiAccounting\(\), or a ledger without a budget"),
        (lambda: with_budget(dm.ledgers.RenyiAccounting()), CLAIM, {}, REFUSED, r"ClaimAccounting\(\)"),
        (lambda: with_budget(dm.ledgers.ClaimAccounting()), RHO, {}, REFUSED, r"RenyiAccounting\(\)"),
        (lambda: with_budget(dm.ledgers.ClaimAccounting()), LAPLACE, {"count": 9}, INVALID, "what is left"),
    ],
)
def test_mechanisms_that_do_not_go_with_a_ledger_are_refused(book, mechanism, settings, error, words):
    ledger = book()
    before = ledger.to_json()
    with pytest.raises(error, match=words):
        ledger.add_mechanism("a", mechanism, **settings)
    assert ledger.to_json() == before


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: dm.ledgers.Laplace(0.0, 1.0), "scale"),
        (lambda: dm.ledgers.Laplace(1.0, 501.0), "scale"),
        (lambda: dm.ledgers.Laplace(1.0, math.nan), "sensitivity"),
        (lambda: dm.ledgers.DiscreteLaplace(1.0, 1.5), "sensitivity"),
        (lambda: dm.ledgers.RandomizedResponse(0.5), "truth_prob"),
        (lambda: dm.ledgers.RandomizedResponse(1.0), "truth_prob"),
        (lambda: dm.ledgers.RandomizedResponse(0.9, 1), "categories"),
        (lambda: dm.ledgers.PureDP(0.0), "eps"),
        (lambda: dm.ledgers.ApproximateDP(1.0, 0.0), "delta"),
        (lambda: dm.ledgers.ZCDP(-1.0), "rho"),
        (lambda: dm.ledgers.Gaussian(1.0, 0.0), "sensitivity"),
        (lambda: dm.ledgers.Gaussian(1e-9, 1.0), "sigma"),
        (lambda: dm.ledgers.Laplace(1.0, 1.0, unit="user"), "unit"),
    ],
)
def test_bad_arguments_are_named(make, words):
    with pytest.raises(INVALID, match=words):
        make()


def test_randomised_response_is_for_replaced_answers():
    with pytest.raises(REFUSED, match="adds or removes one"):
        dm.ledgers.RandomizedResponse(0.75, adjacency=dm.Adjacency.ADD_REMOVE)


@pytest.mark.parametrize(
    ("accounting", "mechanism", "price"),
    [
        (None, NOISE, [3 / 16]),
        (dm.ledgers.RenyiAccounting(8), NOISE, [3 / 4]),
        (dm.ledgers.RenyiAccounting(8), RHO, [0.48]),
        (dm.ledgers.ClaimAccounting(), LAPLACE, [1.5, 0.0]),
        (dm.ledgers.ClaimAccounting(), CLAIM, [0.9, 3e-7]),
        (dm.ledgers.ClaimAccounting(1e-6), CLAIM, [0.135, 3e-7]),
    ],
)
def test_budgets_charge_every_release(accounting, mechanism, price):
    book = with_budget(accounting)
    assert not book.would_exceed(mechanism, count=3)
    assert book.would_exceed(mechanism, count=10**5)
    book.add_mechanism("a", mechanism, count=3)
    assert list(book.mechanisms[0].price) == pytest.approx(price, rel=1e-12)
    assert all(paid >= due * (1 - 1e-15) for paid, due in zip(book.mechanisms[0].price, price, strict=True))
    assert book.epsilon(1e-5).upper <= 4.0
    assert str(book.guarantee) == "deterministic upper bound"
    again = dm.Ledger.from_json(book.to_json())
    assert again.to_json() == book.to_json()


def mixed():
    book = listed((LAPLACE, 2), (GEOMETRIC, 1), (CLAIM, 3), (RHO, 1), (NOISE, 2), (dm.ledgers.PureDP(0.1), 4))
    book.add("accuracy", TEST)
    book.add_counts("classes", dm.DiscreteGaussian(20))
    return book


def rehashed(ledger, change):
    document = json.loads(ledger.to_json())
    change(document)
    del document["checksum"]
    return json.dumps(document | {"checksum": checksum_of_document(document)})


def test_a_file_holds_mechanisms_to_the_last_bit(tmp_path):
    book = mixed()
    book.save(tmp_path / "ledger.json")
    again = dm.Ledger.load(tmp_path / "ledger.json")
    assert again.to_json() == book.to_json()
    assert again.mechanisms == book.mechanisms
    assert json.loads(book.to_json())["schema_version"] == 3
    assert json.loads(listed().to_json())["schema_version"] == 1
    with pytest.raises(INVALID, match="a ledger that this one continues"):
        listed((LAPLACE, 3)).save(tmp_path / "ledger.json")


def test_a_file_keeps_the_number_of_categories():
    book = listed((dm.ledgers.RandomizedResponse(0.4, 5), 2), adjacency=REPLACE)
    assert dm.Ledger.from_json(book.to_json()).mechanisms == book.mechanisms


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda one: one["mechanisms"][0].update(count=0), "does not follow the schema"),
        (lambda one: one["mechanisms"][0].update(count=3), None),
        (lambda one: one["mechanisms"][0]["mechanism"].update(kind="gauss"), "does not follow the schema"),
        (lambda one: one["mechanisms"][0]["mechanism"].update(kind="gaussian"), "does not follow the schema"),
        (lambda one: one["mechanisms"][0]["mechanism"].pop("unit"), "does not follow the schema"),
        (lambda one: one["mechanisms"][1]["mechanism"].update(unit="user"), "does not hold together"),
        (lambda one: one["mechanisms"][0].update(number=2), "entries contradict each other"),
        (lambda one: one["mechanisms"].clear(), "does not follow the schema"),
        (lambda one: one.update(schema_version=2), "does not follow the schema"),
        (lambda one: one.update(schema_version=4), "schema version 4 is newer than 3"),
    ],
)
def test_edited_files_are_refused(change, words):
    text = rehashed(mixed(), change)
    if words is None:  # a consistent ledger of other releases: only the checksum tells
        assert dm.Ledger.from_json(text).mechanisms[0].count == 3
        return
    with pytest.raises(dm.exceptions.CertificateError, match=words):
        dm.Ledger.from_json(text)


def test_verification_checks_mechanisms(tmp_path):
    book = listed((LAPLACE, 2))
    book.add("accuracy", TEST)
    book.save(tmp_path / "ledger.json")
    found = dm.verify(tmp_path / "ledger.json")
    assert found.ok
    totals = [one.detail for one in found.checks if one.name == "total"]
    assert all(detail.startswith("PROVED: ") for detail in totals)
    assert any("eps is at most" in detail for detail in totals)
    eps = book.epsilon(1e-4).upper
    for most, ok in ((1.01 * eps, True), (0.9 * eps, False)):
        policy = dm.certificates.Policy(max_eps=most, max_delta=1e-4)
        assert dm.verify(tmp_path / "ledger.json", policy=policy).ok is ok


def test_profiles_of_mechanisms_convert_and_select():
    theirs = LAPLACE.profile(2).to_dp_accounting()
    assert theirs.get_epsilon_for_delta(1e-3) == pytest.approx(
        LAPLACE.profile(2).epsilon(1e-3).upper, abs=1e-3
    )
    best = ANSWER.profile().private_selection(dm.ledgers.PoissonRuns(3.0))
    assert ANSWER.profile().epsilon(1e-6).lower < best.epsilon(1e-6).upper < 10.0
    with pytest.raises(REFUSED, match="no rho follows"):
        LAPLACE.profile().zcdp  # noqa: B018


def test_claims_without_moments_next_to_a_replaced_example_are_composed_by_their_curve():
    replace = dm.Adjacency.REPLACE_ONE
    cal = dm.calibrate_sigma(dm.Identity(100), 2.0, 1e-5, participation=dm.Poisson(0.01), adjacency=replace)
    ledger = dm.Ledger(adjacency=replace)
    ledger.add("run", cal, batch="b")
    ledger.add_mechanism("mean", dm.ledgers.ZCDP(0.01, adjacency=replace))
    assert ledger.epsilon(1e-5).upper == ledger.profile().epsilon(1e-5).upper
    assert 2.0 < ledger.epsilon(1e-5).upper < 2.1
    assert ledger.delta(3.0).upper < 1e-5


def test_whether_a_certificate_exceeds_the_budget_is_asked_once():
    cal = dm.calibrate_sigma(dm.Identity(4), 1.0, 1e-6)
    ledger = dm.Ledger(budget=dm.PrivacyBudget(3.0, 1e-5), accounting=dm.ledgers.ClaimAccounting())
    assert not ledger.would_exceed(cal)
    for count in (2, 0, "x"):
        with pytest.raises(dm.InvalidParameterError, match="count must be 1"):
            ledger.would_exceed(cal, count=count)
