import string

import pytest

import dpmech as dm
from dpmech.numerics import bounds as provenance

PLAN = dm.FixedEpochs(3)


def test_a_route_without_words_is_told_by_its_name_and_facts():
    by = dm.numerics.Provenance(
        "toy.scheme", {"bins": 3, "rate": 0.5, "side": "ADD"}, (dm.numerics.Provenance("toy.base"),)
    )
    assert str(by) == "toy.scheme, bins 3, rate 0.5, side 'ADD'; toy.base"


def test_words_are_made_of_facts_and_of_what_they_rest_on():
    cal = dm.calibrate_sigma(dm.Identity(9), 1.0, 1e-5, participation=PLAN)
    assert cal.achieved.by.route == "gaussian.analytic"
    assert cal.method == ("analytic Gaussian; sensitivity: at most min_sep bands: squared column norms add")
    poisson = dm.epsilon(dm.Identity(20), 1.0, 1e-5, participation=dm.Poisson(0.1))
    assert poisson.by == dm.numerics.Provenance("pld.poisson", {"q": 0.1, "steps": 20})
    assert str(poisson.by) == "PLD, Poisson q=0.1, 20 steps, both directions"


def test_shares_and_levels_are_told_to_the_safe_side():
    sampled = dm.numerics.Provenance(
        "bins.importance",
        {"bins": 4, "confidence": 0.999999999, "direction": "ADD", "star": 0.6, "local": 0.4},
    )
    assert str(sampled) == (
        "Balls-in-Bins importance sampling, 4 bins, two-sided 99.9999999 % interval, "
        "ADD carried by star 60%; local 40%"
    )


@pytest.mark.parametrize(
    "route", [name for name, words in provenance._WORDS.items() if isinstance(words, str)]
)
def test_every_template_is_filled_by_its_facts(route):
    names = [name for _, name, _, _ in string.Formatter().parse(provenance._WORDS[route]) if name]
    text = str(dm.numerics.Provenance(route, dict.fromkeys(names, 7)))
    assert "{" not in text
    assert text.count("7") >= len(names)


@pytest.mark.parametrize("route", provenance._WORDS)
@pytest.mark.parametrize(
    "facts",
    [{}, {"bins": "many"}, {"confidence": "high", "bins": 1}, {"bins": 1, "decay": "x", "excess": 1.0}],
    ids=repr,
)
def test_facts_of_another_route_are_listed_as_they_are(route, facts):
    """A forged file may hold any of them."""
    text = str(dm.numerics.Provenance(route, facts))
    if route in {"bins.importance", "audit.one_run", "bins.certified", "prv.poisson"}:
        assert text == ", ".join([route, *(f"{name} {value!r}" for name, value in facts.items())])


def test_numbers_in_words_are_echoed_as_typed():
    by = dm.numerics.Provenance("bins.certified", {"bins": 4, "beta": 1e-17})
    assert str(by) == "Balls-in-Bins certified sampling, 4 bins, beta 1e-17"


def test_a_program_tells_its_ring_and_one_run_its_ways():
    facts = {"bins": 7, "decay": 0.81234, "excess": 0.01295}
    assert str(dm.numerics.Provenance("bins.program", facts)) == (
        "Balls-in-Bins convex-order program, 7 bins, dominating ring of decay 0.8123 "
        "(entries over-stated by 1.3 % in the mean)"
    )
    assert (
        str(dm.numerics.Provenance("bins.program", {"bins": 7}))
        == "Balls-in-Bins convex-order program, 7 bins"
    )
    counts = {"canaries": 9, "right": 5, "high": 4, "low": 3}
    words = "one run, 9 canaries, 5 of 4 + 3 guesses right"
    assert provenance._one_run(counts | {"ways": 1}) == words
    assert provenance._one_run(counts | {"ways": 2}).startswith(words + ", the best of 2 ways")
