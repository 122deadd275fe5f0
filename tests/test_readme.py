"""The numbers of README and pages: the example is run, and what a reader could copy is recomputed."""

import contextlib
import io
import pathlib
import re
import shlex

import pytest

import dpmech as dm
from dpmech.engines.gaussian import gaussian_sigma
from dpmech.mechanism.noise_cost import noise_cost
from dpmech.numerics.printed import times, up
from dpmech.plans.files import published_claims, read_claims
from tests.support.command_line import told

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CHOOSING = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")
N, DELTA = 3900, 1e-5
# From run to run a certified sigma moves by so much.
DRAWN = 0.012
BINS, POISSON = dm.BallsInBins(390), dm.Poisson(128 / 50_000)
# Rows of the table: family, its options, and (buffers, regenerated vectors).
FITS = {
    "`LambdaCGD`, fitted": (dm.LambdaCGD, {}, (0, 1)),
    "`BLT`, 1 buffer, fitted": (dm.BLT, {"buffers": 1}, (1, 0)),
    "`BLT`, 3 buffers, fitted": (dm.BLT, {"buffers": 3}, (3, 0)),
}
# What these fits found, so that a calibration alone gives their error again.
FOUND = {
    ("`LambdaCGD`, fitted", 8.0): dm.LambdaCGD(N, 0.97318),
    ("`LambdaCGD`, fitted", 1.0): dm.LambdaCGD(N, 0.946),
    ("`BLT`, 1 buffer, fitted", 1.0): dm.BLT(N, [0.98266], [0.085435]),
    ("`BLT`, 1 buffer, fitted", 8.0): dm.BLT(N, [0.992955], [0.119508]),
    ("`BLT`, 3 buffers, fitted", 8.0): dm.BLT(
        N, [0.382483, 0.859055, 0.994637], [0.150279, 0.189001, 0.097605]
    ),
}
ROW = {
    name: line
    for line in CHOOSING.splitlines()
    for name in ("DP-SGD: ", *FITS)
    if line.startswith(f"| {name}")
}


def example():
    """The example, and what it is said to print."""
    found = re.search(
        r"## Ten lines\n\n(?:<!--.*?-->\n)?```python\n(.*?)```\n\n```text\n(.*?)```", README, re.DOTALL
    )
    return found.group(1), found.group(2)


def baseline(eps):
    return dm.calibrate_sigma(dm.Identity(N), eps, DELTA, participation=POISSON)


def test_the_example_is_about_ten_lines_and_prints_no_number_of_its_own_making():
    code, _ = example()
    assert sum(bool(line.strip()) and not line.startswith("#") for line in code.splitlines()) <= 10
    assert 'f"' not in code
    assert ":." not in code
    assert "round(" not in code


def test_the_half_on_dp_sgd_is_what_it_prints():
    _, text = example()
    assert text.endswith(f"\n{baseline(8.0)}\n")


@pytest.mark.slow
def test_the_example_prints_what_it_says_and_the_printed_sigma_meets_the_budget():
    code, text = example()
    names = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, names)
    number = r"\d+\.?\d*(?:e-\d+)?"
    found, stated = printed.getvalue(), text
    # Words and the numbers of the plan are the same; what rests on draws moves a little.
    assert re.sub(number, "#", found) == re.sub(number, "#", stated)
    for one, other in zip(re.findall(number, found), re.findall(number, stated), strict=True):
        assert float(one) == pytest.approx(float(other), rel=DRAWN)
    assert found.splitlines()[5:] == stated.splitlines()[5:]
    for cal, sigma in zip(
        (names["cal"], names["sgd"]), re.findall(r"^sigma (\S+) at", text, re.MULTILINE), strict=True
    ):
        met = dm.delta(cal.strategy, float(sigma), 8.0, participation=cal.participation)
        # A second sample does not prove what the first one, made for it, has proved; it may contradict it.
        assert (met.lower if met.guarantee.kind is dm.Kind.PROBABLE else met.upper) <= DELTA


def test_the_headline_compares_with_poisson_sampling():
    row = ROW["DP-SGD: "]
    assert "| Poisson |" in row
    for eps in (8.0, 1.0):
        assert f"| {up(baseline(eps).rmse(), 4)} |" in row
    # Without amplification lambda-CGD is no better than DP-SGD at eps 1, and the README says so.
    plain = [
        up(dm.calibrate_sigma(dm.LambdaCGD(N, 0.95), eps, DELTA, participation=dm.MinSep(390, 10)).rmse(), 4)
        for eps in (8.0, 1.0)
    ]
    assert f"is {plain[0]} at eps 8 and {plain[1]} at eps 1" in " ".join(CHOOSING.split())


def test_the_headline_states_what_the_noise_costs():
    words = {
        (0, 1): "regenerates one vector of the model's size, stores none",
        (1, 0): "stores one vector",
        (3, 0): "stores three vectors",
    }
    for (name, eps), strategy in FOUND.items():
        cost = noise_cost(strategy)
        assert (cost.buffers, cost.regenerated) == FITS[name][2], eps
        assert words[FITS[name][2]] in ROW[name]


def stated(name, eps):
    """The error and the gain of a row."""
    cell = ROW[name].split(" | ")[2 if eps == 8.0 else 3]
    return re.fullmatch(r"(\S+) \((\S+)x lower\)", cell).groups()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "eps"), FOUND)
def test_the_headline_is_what_is_computed(name, eps):
    cal = dm.calibrate_sigma(FOUND[name, eps], eps, DELTA, participation=BINS)
    assert cal.guarantee == dm.Guarantee(dm.Kind.PROBABLE, 1e-9, inside_delta=True)
    error, gain = stated(name, eps)
    assert float(error) == pytest.approx(cal.rmse(), rel=DRAWN)
    assert float(gain) == pytest.approx(baseline(eps).rmse() / cal.rmse(), abs=0.1 + DRAWN)
    assert gain == times(baseline(eps).rmse(), float(error), 2)


@pytest.mark.exhaustive
@pytest.mark.parametrize("eps", [8.0, 1.0])
@pytest.mark.parametrize("name", FITS)
def test_the_headline_is_what_is_fitted(name, eps):
    family, options, _ = FITS[name]
    fit = dm.optimize(family, BINS, n=N, eps=eps, delta=DELTA, **options)
    assert fit.error == pytest.approx(float(stated(name, eps)[0]), rel=DRAWN)


# What the README and the page say that `recommend` finds.
BEST = re.compile(r"(?:error|RMSE) of (\S+) is (\S+)x lower than that of DP-SGD")


def test_the_recommended_noise_is_the_best_row_of_the_table():
    (readme,), (page,) = (BEST.findall(" ".join(text.split())) for text in (README, CHOOSING))
    assert readme == page
    best = min(float(stated(name, 8.0)[0]) for name in FITS)
    assert readme == (up(best, 3), times(baseline(8.0).rmse(), float(up(best, 3)), 3))
    assert f"than that of DP-SGD, {up(baseline(8.0).rmse(), 4)} (" in " ".join(README.split())


@pytest.mark.exhaustive
def test_the_command_of_the_readme_finds_what_it_says():
    (command,) = re.findall(r"^\$ \.venv/bin/dpmech (recommend .*\\\n.*)$", README, re.MULTILINE)
    best = told(*shlex.split(command.replace("\\\n", " "), comments=True))["best"]
    error, gain = map(float, BEST.search(" ".join(README.split())).groups())
    assert (best["label"], best["sampling"], best["buffers"]) == ("blt buffers=3", "balls-in-bins", 3)
    assert best["rmse"] == pytest.approx(error, rel=DRAWN)
    assert baseline(8.0).rmse() / best["rmse"] == pytest.approx(gain, rel=DRAWN)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("pattern", "family", "bands", "n", "bins", "eps"),
    [
        (r"every step of an epoch has an RMSE of (\S+)\. ", dm.BandedToeplitz, 390, N, BINS, 8.0),
        (r"`Dense` with 4 vectors has an RMSE of (\S+), ", dm.Dense, 5, 50, dm.BallsInBins(5), 4.0),
        (r"compared with (\S+) for `BandedToeplitz`", dm.BandedToeplitz, 5, 50, dm.BallsInBins(5), 4.0),
    ],
)
def test_what_more_vectors_gain_is_what_is_fitted(pattern, family, bands, n, bins, eps):
    (error,) = re.findall(pattern, " ".join(CHOOSING.split()))
    fit = dm.optimize(family, bins, n=n, bands=bands, eps=eps, delta=DELTA, compare=False)
    assert fit.error == pytest.approx(float(error), rel=DRAWN)


def claimed_muon(index):
    """One of the two claims of DP-Muon's Table 3 whose releases share batches."""
    claims = read_claims(published_claims()["dp_muon"])
    return [claim for claim in claims if claim.blocks > 1][index]


def joined_eps(index):
    claim = claimed_muon(index)
    return dm.epsilon(claim.strategy, claim.joint_sigma, claim.delta, participation=claim.participation).upper


def needed_sigma(index):
    claim = claimed_muon(index)
    cal = dm.calibrate_sigma(claim.strategy, 8.0, claim.delta, participation=claim.participation)
    return cal.sigma * claim.blocks**0.5


def bins_sigma(method):
    return dm.calibrate_sigma(dm.LambdaCGD(N, 0.9), 8.0, DELTA, participation=BINS, method=method).sigma


def plain_sigma(strategy):
    return dm.calibrate_sigma(strategy, 8.0, DELTA, participation=dm.MinSep(390, 10)).sigma


@pytest.mark.parametrize(
    ("page", "pattern", "value"),
    [
        ("docs/getting_started.md", r"cal.sigma  # (\S+):", lambda: plain_sigma(dm.LambdaCGD(N, 0.95))),
        (
            "dpmech/schemes/balls_in_bins/page.md",
            r"without\s+sampling,\s+sigma\s+would\s+be\s+(\S+)\)",
            lambda: plain_sigma(dm.LambdaCGD(N, 0.9)),
        ),
        (
            "dpmech/schemes/balls_in_bins/page.md",
            r"`Rdp\(\)` \| (\S+) \| [\d.]+ \| a theorem",
            lambda: bins_sigma(dm.methods.Rdp()),
        ),
        pytest.param(
            "dpmech/schemes/balls_in_bins/page.md",
            r"`Deterministic\(\)` \| (\S+) \| [\d.]+ \| a theorem",
            lambda: bins_sigma(dm.methods.Deterministic()),
            marks=pytest.mark.slow,
        ),
        (
            "docs/guarantees.md",
            r"over 8 steps, it is ([\d.]+);",
            lambda: dm.sensitivity(dm.LambdaCGD(8, 0.9), dm.SingleParticipation()).upper,
        ),
        (
            "docs/fitting.md",
            r"delta 1e-5, where sigma / sensitivity is ([\d.]+):",
            lambda: gaussian_sigma(8.0, DELTA),
        ),
        (
            "docs/ledgers.md",
            r"Poisson\(0.01\)\n\)  # ([\d.]+), not",
            lambda: (
                dm.epsilon(
                    dm.Identity(1000),
                    dm.ledgers.joint_release([1, 1]).sigma,
                    1e-6,
                    participation=dm.Poisson(0.01),
                ).upper
            ),
        ),
        ("docs/risk.md", r"the values are ([\d.]+) and", lambda: joined_eps(0)),
        ("docs/risk.md", r"the values are [\d.]+ and ([\d.]+);", lambda: joined_eps(1)),
        pytest.param(
            "docs/risk.md", r"needs sigma = ([\d.]+) and", lambda: needed_sigma(0), marks=pytest.mark.slow
        ),
        pytest.param(
            "docs/risk.md",
            r"needs sigma = [\d.]+ and ([\d.]+)\.",
            lambda: needed_sigma(1),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_numbers_of_the_pages_are_on_the_safe_side(page, pattern, value):
    (text,) = re.findall(pattern, (ROOT / page).read_text(encoding="utf-8"))
    digits = len(text.replace(".", "").lstrip("0"))
    assert float(text) == float(up(value(), digits))
