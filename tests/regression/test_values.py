"""The library says what it said: every value of `values.json`, to 1e-9 where it was computed, both ends.

A number that moves by more is either a mistake or a change to be explained, after which
`python -m tests.regression --write` renews the file.
"""

import collections
import dataclasses
import itertools
import json

import pytest

import dpmech as dm
from tests.regression import __main__ as command
from tests.regression import library, plans, record

SAVED = record.loaded()
ASKED = record.asked()
RUNNING = [plan for plan in plans.EVERY.values() if library.runs(plan)]


def by_plan(keys):
    """The questions of each plan, which are one test."""
    found = collections.defaultdict(list)
    for key in keys:
        found[key[0]].append(key)
    return [pytest.param(keys, id=name) for name, keys in found.items()]


QUICK, SLOW = record.parts(SAVED)


def changes(keys, saved=SAVED):
    found = [
        record.moved(key, saved[key], record.Answer(*ASKED[key](), seconds=0.0), record.tolerance())
        for key in keys
        if key in ASKED
    ]
    return [str(one) for one in itertools.chain.from_iterable(found)]


@pytest.mark.parametrize("keys", by_plan(QUICK))
def test_quick_values_are_what_they_were(keys):
    assert changes(keys) == []


@pytest.mark.slow
@pytest.mark.parametrize("keys", by_plan(SLOW))
def test_slow_values_are_what_they_were(keys):
    assert changes(keys) == []


def test_the_file_has_an_answer_to_every_question_and_no_other():
    assert sorted(SAVED) == sorted(ASKED)
    questions = [
        (plan.name, ask) for plan in (*plans.EVERY.values(), *plans.REFUSED.values()) for ask in plan.asks
    ]
    assert len(ASKED) == len(questions) + len(record.PLANS)


def test_what_should_be_refused_is_and_nothing_else():
    refused = {key for key, one in SAVED.items() if (one.sure or "").startswith("refused")}
    asked = {(plan.name, plans.question(ask)) for plan in plans.REFUSED.values() for ask in plan.asks}
    assert refused == asked
    assert all(hasattr(dm, SAVED[key].sure.removeprefix("refused: ")) for key in refused)
    assert all(one.numbers for key, one in SAVED.items() if key not in refused)


# ---- a change is seen


def test_a_planted_change_is_seen_in_every_number():
    for key, one in SAVED.items():
        for name, value in one.numbers.items():
            if value == 0.0:
                continue
            planted = dataclasses.replace(one, numbers={**one.numbers, name: value * (1.0 + 1e-6)})
            assert [found.what for found in record.moved(key, one, planted)] == [name]
        assert record.moved(key, one, dataclasses.replace(one, sure="exact, of course"))


def test_on_other_machines_numbers_may_be_rounded_otherwise(tmp_path):
    path = tmp_path / "values.json"
    record.saved(record.loaded(), path)
    assert record.tolerance(path) == record.RTOL
    document = json.loads(path.read_text(encoding="utf-8"))
    document["versions"]["processor"] = "another one"
    path.write_text(json.dumps(document), encoding="utf-8")
    assert record.tolerance(path) == record.ELSEWHERE
    key, one = next((key, one) for key, one in SAVED.items() if one.numbers.get("sigma"))
    for factor, seen in ((1.0 + 1e-5, False), (1.0 + 1e-3, True)):
        other = dataclasses.replace(one, numbers={**one.numbers, "sigma": one.numbers["sigma"] * factor})
        assert bool(record.moved(key, one, other, record.ELSEWHERE)) is seen


def test_numbers_that_are_equal_but_for_rounding_have_not_moved():
    for key, one in SAVED.items():
        rounded = {name: value * (1.0 + 1e-13) for name, value in one.numbers.items()}
        assert record.moved(key, one, dataclasses.replace(one, numbers=rounded)) == []


@pytest.mark.parametrize("end", ["lower", "upper"])
def test_a_change_in_the_library_is_seen(monkeypatch, end):
    """Both ends, from the public function to the message."""
    name, ask = "poisson q=0.51, identity 50", "epsilon 1.1 1e-06"
    keys = [key for key in QUICK if key[0] == name]
    assert (name, ask) in keys
    epsilon = dm.epsilon

    def changed(*arguments, **settings):
        found = epsilon(*arguments, **settings)
        factor = 1.0 + 1e-3 if end == "upper" else 1.0 - 1e-3
        return dataclasses.replace(found, **{end: getattr(found, end) * factor})

    monkeypatch.setattr(dm, "epsilon", changed)
    (found,) = changes(keys)
    assert found.startswith(f"{name} | {ask}: {end}: ")


def test_the_command_prints_what_moved_and_renews_the_file(tmp_path, capsys):
    path = tmp_path / "values.json"
    document = json.loads(record.FILE.read_text(encoding="utf-8"))
    entry = document["values"]["every-step, falling 12"]["sigma 2.0 1e-05"]
    entry["numbers"]["sigma"] *= 1.0 + 1e-3
    path.write_text(json.dumps(document), encoding="utf-8")
    words = ["every-step, falling 12", "sigma 2.0"]
    assert command.main([*words, "--write"], path) == 1
    printed = capsys.readouterr().out
    assert "every-step, falling 12 | sigma 2.0 1e-05: sigma: " in printed
    assert "(-9.99e-04 relative)" in printed
    assert command.main(words, path) == 0
    assert "0 moved of" in capsys.readouterr().out
    assert sorted(record.loaded(path)) == sorted(SAVED)


# ---- nothing is left out


@pytest.mark.parametrize(
    ("base", "field", "made_of"),
    [
        ("participation", "who", lambda words: [library.participation_of(words)]),
        ("strategy", "strategy", lambda words: strategies_in(library.strategy_of(words))),
        ("method", "method", lambda words: [library.method_of(words)]),
    ],
)
def test_every_kind_that_the_library_exports_is_in_a_plan(base, field, made_of):
    exported = library.kinds_of(base)
    assert len(exported) >= 7
    words = [getattr(plan, field) for plan in RUNNING if getattr(plan, field)]
    if base == "strategy":  # one of each word, and none that is fitted: that takes long
        words = [one for one in {one[0]: one for one in words}.values() if "fitted" not in one[0]]
    assert exported <= {type(one) for word in words for one in made_of(word)}


def strategies_in(strategy):
    inner = getattr(strategy, "strategy", None)
    return [strategy] if inner is None else [strategy, *strategies_in(inner)]


def test_every_pair_that_the_library_accepts_is_in_a_plan():
    """A participation with an adjacency, and with a method.

    Left out are settings without any sampling (q = 1, one bin), which are accounted for as what they then
    are, and mechanisms that take long to make.
    """
    pairs = {(plan.who[0], users_of(plan), plan.adjacency) for plan in RUNNING}
    methods = {(plan.who[0], users_of(plan), plan.method and plan.method[0]) for plan in RUNNING}
    missing = set()
    for plan in RUNNING:
        own = plan.who[0], users_of(plan)
        for adjacency in dm.Adjacency:
            asked = dataclasses.replace(plan, adjacency=adjacency.value)
            if (*own, adjacency.value) not in pairs and made(asked) is not None:
                missing.add((*own, adjacency.value))
        unasked = [word for word in library.method_words() if (*own, word[0]) not in methods]
        if not unasked or plan.strategy[0].startswith("fitted"):
            continue
        mechanism = made(plan)
        if library.degenerate(mechanism) or mechanism.steps > 1000:
            continue
        missing |= {(*own, word[0]) for word in unasked if library.accepts(mechanism, word)}
    assert missing == set()


def users_of(plan):
    """Which settings make another kind of one participation."""
    return tuple(name for name in ("users", "batch") if plan.who[1].get(name) is not None)


def made(plan):
    try:
        return library.mechanism_of(plan)
    except dm.DpmechError:
        return None


def test_the_parts_hold_everything_within_their_time():
    quick, slow = record.parts(SAVED)
    assert sorted([*quick, *slow]) == sorted(SAVED)
    assert sum(SAVED[key].seconds for key in quick) <= record.QUICK_SECONDS
    assert sum(one.seconds for one in SAVED.values()) <= record.ALL_SECONDS
