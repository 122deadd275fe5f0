"""Ledger files: checksummed, written whole or not at all, and checked by verify."""

import copy
import dataclasses
import json

import pytest
from click.testing import CliRunner

import dpmech as dm
from dpmech.certificates.claim import with_checksum
from dpmech.certificates.document import checksum_of_document, from_plain, to_plain
from dpmech.cli import main
from dpmech.ledgers import privacy_filters as accountings
from tests.support import forged_files, saved

BUDGET = dm.PrivacyBudget(8.0, 1e-5)
PLAIN = dm.calibrate_sigma(dm.Identity(1), 1.0, 1e-6).certificate()
OTHER = dm.calibrate_sigma(dm.LambdaCGD(9, 0.7), 0.5, 1e-6, participation=dm.MinSep(3)).certificate()
SAMPLED, BINS = saved.certificate("poisson 30"), saved.certificate("bins moments 6")


def non_adaptive():
    ledger = dm.Ledger()
    batch = dm.ledgers.SharedBatch("batch 1", SAMPLED.strategy, SAMPLED.participation)
    batch.register("a", 1.5 * SAMPLED.sigma)
    batch.register("b", 1.5 * SAMPLED.sigma)
    ledger.add("sampled", SAMPLED, batch=batch)
    ledger.add("again", SAMPLED, batch="batch 2")
    ledger.add("bins", BINS, batch="batch 3")
    ledger.add("plain", PLAIN)
    return ledger


def chosen(accounting=None):
    ledger = dm.Ledger(budget=BUDGET, accounting=accounting)
    ledger.add("plain", PLAIN)
    ledger.add("other", OTHER)
    ledger.add("plain again", PLAIN)
    return ledger


def mixed():
    ledger = dm.Ledger(budget=BUDGET, accounting=dm.ledgers.RenyiAccounting())
    ledger.add("plain", PLAIN)
    ledger.add("sampled", SAMPLED, batch="batch 1")
    ledger.add("bins", BINS, batch="batch 2")
    ledger.close()
    return ledger


ALL = {
    "non_adaptive": non_adaptive(),
    "gdp": chosen(),
    "mixed": mixed(),
    "claims": chosen(dm.ledgers.ClaimAccounting()),
    "slack": chosen(dm.ledgers.ClaimAccounting(5e-6)),
}


def rehashed(document):
    content = {key: value for key, value in document.items() if key != "checksum"}
    return json.dumps(content | {"checksum": checksum_of_document(content)})


# ---- reading and writing


@pytest.mark.parametrize("name", list(ALL))
def test_a_ledger_comes_back_as_it_was(name, tmp_path):
    ledger = ALL[name]
    ledger.save(tmp_path / "ledger.json")
    loaded = dm.Ledger.load(tmp_path / "ledger.json")
    assert loaded.to_dict() == ledger.to_dict()
    assert loaded.releases == ledger.releases
    assert (loaded.mode, loaded.budget, loaded.accounting) == (ledger.mode, ledger.budget, ledger.accounting)
    assert loaded.closed is ledger.closed
    switch = {} if ledger.budget else {"profiles": False}
    assert loaded.epsilon(1e-4, **switch) == ledger.epsilon(1e-4, **switch)
    text = (tmp_path / "ledger.json").read_text(encoding="utf-8")
    assert text.splitlines()[0] == f'{{"guarantee": "{ledger.headline}",'
    assert {entry["mode"] for entry in json.loads(text)["releases"]} == {ledger.mode.value}


@pytest.mark.parametrize("name", list(ALL))
def test_every_byte_is_under_the_checksum(name):
    text = ALL[name].to_json()
    for old, new in (
        ("plain", "plaim"),
        ('"number": 2', '"number": 3'),
        ('"batch 2"', '"batch 4"'),
        ("0x1.", "0x1.0"),
    ):
        changed = text.replace(old, new, 1)
        if changed != text:
            with pytest.raises(dm.exceptions.CertificateError):
                dm.Ledger.from_json(changed)


def swapped(document):
    document["releases"][0], document["releases"][1] = document["releases"][1], document["releases"][0]


def at(*path, to):
    def edit(document):
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = to(document[path[-1]]) if callable(to) else to

    return edit


def number(value):
    return to_plain(float(value))


def cheaper(price):
    return to_plain([0.5 * value for value in from_plain(price)])


RENYI = {"type": "RenyiAccounting", "order": 4}
FORGERIES = {
    "order": ("gdp", swapped, "contradict"),
    "name twice": ("gdp", at("releases", 2, "name", to="plain"), "new in this ledger"),
    "batch twice": ("non_adaptive", at("releases", 1, "batch", to="batch 1"), "in the ledger already"),
    "no batch": ("non_adaptive", at("releases", 1, "batch", to=None), "batches are sampled"),
    "less noise on the batch": ("non_adaptive",
        at("releases", 0, "blocks", "a", to=number(0.1)), "less than"),
    "a price": ("gdp", at("releases", 1, "price", to=cheaper), "contradict"),
    "what was spent": ("gdp", at("total", "spent", to=cheaper), "contradict"),
    "the limit": ("gdp", at("total", "limits", to=cheaper), "contradict"),
    "the order of the filter": ("mixed", at("ledger", "accounting", "order", to=2), "order"),
    "a smaller budget": ("gdp", at("ledger", "budget", "eps", to=number(1.0)), "within what is left"),
    "the budget": ("gdp", at("ledger", "budget", "eps", to=number(8.1)), "contradict"),
    "another accounting method": ("gdp", at("ledger", "accounting", to=RENYI), "contradict"),
    "no budget": ("gdp", at("ledger", "budget", to=None), "without a budget"),
    "no budget, no accounting method": (
        "gdp", lambda data: data["ledger"].update(budget=None, accounting=None), "contradict"
    ),
    "the mode": ("gdp", at("ledger", "mode", to="non_adaptive"), "contradict"),
    "the mode of an entry": ("gdp", at("releases", 0, "mode", to="non_adaptive"), "contradict"),
    "the headline": ("non_adaptive", at("guarantee", to="exact"), "contradict"),
    "reopened": ("mixed", at("ledger", "closed", to=False), "contradict"),
    "adjacency": ("gdp", at("ledger", "adjacency", to="replace_one"), "one adjacency"),
    "the composition": ("non_adaptive", at("total", "gaussian", to=cheaper), "contradict"),
    "steps": ("non_adaptive", at("total", "sampled", to=to_plain([[0.1, 1.0, 3.0, 1.0]])), "contradict"),
    "a release": ("gdp", at("releases", 1, "certificate", to=PLAIN.to_dict()), "contradict"),
    "a certificate": ("gdp", at("releases", 1, "certificate", "claim", "sigma", to=number(99.0)), "checksum"),
    "an unknown entry": ("gdp", lambda data: data["total"].update(extra=1), "schema"),
    "an unknown accounting method": ("gdp", at("ledger", "accounting", to={"type": "Pld"}), "schema"),
    "blocks without a batch": ("non_adaptive",
        at("releases", 3, "blocks", to={"a": number(9.0)}), "together"),
}  # fmt: skip


@pytest.mark.parametrize("forgery", list(FORGERIES))
def test_a_forged_and_rehashed_ledger_is_refused(forgery):
    name, edit, message = FORGERIES[forgery]
    document = copy.deepcopy(ALL[name].to_dict())
    edit(document)
    with pytest.raises(dm.exceptions.CertificateError, match=message):
        dm.Ledger.from_json(rehashed(document))


def test_files_of_the_unchecksummed_form_are_refused_with_the_reason(tmp_path):
    old = {
        "schema": "dpmech.ledgers.ledger",
        "schema_version": 1,
        "adjacency": "add_remove",
        "allow_estimates": False,
        "releases": [{"name": "a", "batch": None, "blocks": {}, "certificate": PLAIN.to_dict()}],
    }
    (tmp_path / "old.json").write_text(json.dumps(old), encoding="utf-8")
    with pytest.raises(dm.exceptions.CertificateError, match="first form, which had no checksum"):
        dm.Ledger.load(tmp_path / "old.json")
    assert "first form" in dm.verify(tmp_path / "old.json").failures[0]


def test_two_writers_do_not_lose_each_others_releases(tmp_path):
    path = tmp_path / "ledger.json"
    chosen().save(path)
    first, second = dm.Ledger.load(path), dm.Ledger.load(path)
    first.add("of the first", OTHER)
    first.save(path)
    second.add("of the second", PLAIN)
    with pytest.raises(dm.InvalidParameterError, match="load it again"):
        second.save(path)
    assert dm.Ledger.load(path).releases[-1].name == "of the first"
    second.save(tmp_path / "aside.json")
    # Nor does an older state, another budget, or anything else that is not a continuation replace it.
    for ledger in (chosen(), dm.Ledger(), non_adaptive(), chosen(dm.ledgers.ClaimAccounting())):
        with pytest.raises(dm.InvalidParameterError, match="continues"):
            ledger.save(path)
    first.close()
    first.save(path)
    reopened = chosen()
    reopened.add("of the first", OTHER)
    with pytest.raises(dm.InvalidParameterError, match="is closed"):
        reopened.save(path)
    (tmp_path / "notes.json").write_text("{}", encoding="utf-8")
    with pytest.raises(dm.InvalidParameterError, match="a new file"):
        first.save(tmp_path / "notes.json")


def test_blocks_bear_any_name():
    batch = dm.ledgers.SharedBatch("batch", SAMPLED.strategy, SAMPLED.participation)
    batch.register("decimal", 1.5 * SAMPLED.sigma)
    batch.register("hex", 1.5 * SAMPLED.sigma)
    ledger = dm.Ledger()
    ledger.add("sampled", SAMPLED, batch=batch)
    assert dm.Ledger.from_json(ledger.to_json()).releases == ledger.releases


# ---- verify


@pytest.mark.parametrize("name", list(ALL))
def test_an_honest_ledger_is_verified(name):
    found = dm.verify(ALL[name])
    # The checker has no price of an allocation to bins.
    assert found.ok or (name == "mixed" and found.undecided), found.failures
    assert found.ledger.to_dict() == ALL[name].to_dict()
    assert found.certificate is None
    assert not found.ok or ALL[name].headline in str(found)
    # Every certificate once, by name.
    assert sum(check.name == "sensitivity" for check in found.checks) == len(
        {one.certificate.fingerprint() for one in ALL[name].releases}
    )
    named = {check.name for check in found.checks}
    assert {"file", "claim", "mode", "total"} <= named
    data = json.loads(json.dumps(found.to_dict()))
    assert data["ok"] is found.ok
    assert data["guarantee"] == str(ALL[name].guarantee)
    assert data["ledger"]["mode"] == ALL[name].mode.value


def test_a_false_certificate_in_a_ledger_is_found():
    ledger = dm.Ledger(budget=BUDGET)
    ledger.add("honest", PLAIN)
    # Whoever forges a file computes its checksum anew.
    ledger.add("forged", with_checksum(dataclasses.replace(OTHER, sigma=0.9 * OTHER.sigma)))
    found = dm.verify(ledger)
    assert not found
    assert found.failures
    assert all("'forged'" in line for line in found.failures)


@pytest.mark.parametrize("name", ["gdp", pytest.param("mixed", marks=pytest.mark.slow), "claims", "slack"])
def test_a_price_or_a_limit_that_is_off_is_found(name, monkeypatch):
    """The checker finds what the filter itself would get wrong."""
    kinds = {"gdp": accountings._GdpFilter, "mixed": accountings._RenyiFilter}
    kind = kinds.get(name, accountings._ClaimFilter)
    honest = kind.price

    def low(self, label, claim):
        first, *rest = honest(self, label, claim)
        return (0.99 * first, *rest)

    rebuilt = {"gdp": chosen, "mixed": mixed, "claims": lambda: chosen(dm.ledgers.ClaimAccounting()),
               "slack": lambda: chosen(dm.ledgers.ClaimAccounting(5e-6))}[name]  # fmt: skip
    with monkeypatch.context() as patched:
        patched.setattr(kind, "price", low)
        assert [check.name for check in dm.verify(rebuilt()).checks if not check.ok] == ["total"]
    make = type(ALL[name].accounting).filter

    def generous(self, budget):
        found = make(self, budget)
        return type(found)(found.accounting, found.budget, tuple(1.01 * limit for limit in found.limits))

    with monkeypatch.context() as patched:
        patched.setattr(type(ALL[name].accounting), "filter", generous)
        assert [check.name for check in dm.verify(rebuilt()).checks if not check.ok] == ["total"]


def test_the_command_checks_ledgers(tmp_path):
    path = tmp_path / "ledger.json"
    chosen().save(path)
    done = CliRunner().invoke(main, ["verify", str(path), "--rigorous"])
    assert done.exit_code == 0, done.output
    assert "VERIFIED: deterministic upper bound; 3 releases, adaptive within eps 8 at" in done.output
    data = json.loads(path.read_text(encoding="utf-8"))
    del data["releases"][0]
    path.write_text(json.dumps(data), encoding="utf-8")
    done = CliRunner().invoke(main, ["verify", str(path)])
    assert done.exit_code == 1
    assert "REFUSED: file: the checksum is broken" in done.output


@pytest.mark.parametrize("budget", [None, BUDGET])
def test_a_certificate_that_claims_too_much_work_is_counted_before_it_is_formed(budget, tmp_path):
    ledger = dm.Ledger(budget=budget)
    ledger.add("a", forged_files.BASE)
    document = ledger.to_dict()
    heavy = dm.BLT(10**7, [0.01 + 0.02 * step for step in range(40)], [0.02] * 40)
    document["releases"][0]["certificate"] = json.loads(forged_files.claimed(heavy, dm.MinSep(12, 2)))
    (tmp_path / "heavy.json").write_text(rehashed(document), encoding="utf-8")
    with pytest.raises(dm.exceptions.WorkLimitError, match="BLT"):
        dm.verify(tmp_path / "heavy.json")
    # What is refused for its cost was not found false: exit code 2, with the option named.
    done = CliRunner().invoke(main, ["verify", str(tmp_path / "heavy.json")])
    assert done.exit_code == 2
    assert "--max-memory" in done.output
