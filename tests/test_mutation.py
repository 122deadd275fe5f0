"""The mutation run itself: what it alters, that an alteration reaches whoever imported the function."""

import ast
import dataclasses
import functools
import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dpmech.mechanism import participation
from dpmech.schemes.fixed_order import participation as fixed_order
from verification.mutation import __main__ as runner
from verification.mutation import _modules, _recording, _results
from verification.mutation._modules import GROUPS, MODULES, all_mutants, drawn, named
from verification.mutation._mutants import mutants
from verification.mutation._page import write_page
from verification.mutation._recording import Recording
from verification.mutation._results import Tally, load_reasons, load_results
from verification.mutation._trials import plant

ROOT = Path(__file__).parents[1]
SOURCE = '''
"""A docstring with 7 in it."""
import math

LIMIT: float = 3.0

def area(x: "2 * x", *, scale=1.5) -> float:
    if x < 0:
        raise ValueError(f"negative by {1 + 1}")
    return -math.sqrt(x) ** 2 + scale * x

class Box:
    @property
    def half(self):
        return max(LIMIT, 4) / 2
'''


def changes(function):
    return {(one.before, one.after) for one in mutants("sample", SOURCE) if one.function == function}


def test_signs_factors_exponents_and_conditions_are_altered():
    found = changes("area")
    whole = "-math.sqrt(x) ** 2 + scale * x"
    assert found >= {
        (whole, "-math.sqrt(x) ** 2 - scale * x"),
        (whole, f"-({whole})"),
        (whole, f"2.0 * ({whole})"),
        ("scale * x", "scale / x"),
        ("math.sqrt(x) ** 2", "math.sqrt(x) * 2"),
        ("math.sqrt(x)", "x"),
        ("-math.sqrt(x) ** 2", "math.sqrt(x) ** 2"),
        ("2", "3"),
        ("2", "4"),
        ("x < 0", "x >= 0"),
        ("1.5", "3.0"),
        ("0", "1"),
    }
    assert ("max(LIMIT, 4)", "min(LIMIT, 4)") in changes("Box.half")
    assert ("3.0", "6.0") in changes("")


def test_words_are_left_alone():
    texts = {one.before for one in mutants("sample", SOURCE)}
    assert "7" not in texts
    assert "1 + 1" not in texts
    assert "2 * x" not in texts


def test_joined_words_are_left_alone():
    source = (
        "def f(x, y):\n    text = ''\n    text += f'{x}'\n    text += 'more'\n    x += y\n    return text"
    )
    assert [(one.before, one.after) for one in mutants("sample", source)] == [("x += y", "x -= y")]


def test_signs_under_a_square_are_left_alone():
    source = "def f(x, y):\n    return abs(x - y) + (x + y) ** 2"
    assert not [one for one in mutants("sample", source) if one.after in {"-(x - y)", "-(x + y)"}]


def test_estimates_of_work_are_left_alone_and_move_no_counts():
    source = """
def f(n):
    spend(3.0 * n, 8.0 * n, what=f"{n + 1} steps")
    return 3.0 * n
"""
    found = list(mutants("sample", source))
    assert {one.statement for one in found} == {"Return 3.0 * n"}
    # The one in the call is counted: what is not altered today keeps the names of the rest.
    assert {one.count for one in found if (one.before, one.after) == ("3.0 * n", "3.0 / n")} == {1}


@pytest.fixture
def sample(tmp_path, monkeypatch):
    path = tmp_path / "sample.py"
    path.write_text(SOURCE, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("sample", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "sample", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("one", list(mutants("sample", SOURCE)), ids=lambda one: f"{one.before}-{one.after}")
def test_every_alteration_can_be_planted(sample, one):
    by_name, box = sample.area, sample.Box()
    assert plant(sample, one.tree)
    assert sample.area is by_name
    assert sys.modules["sample"] is sample
    if (one.before, one.after) == ("scale * x", "scale / x"):
        assert by_name(4.0) == -4.0 + 1.5 / 4.0
    if (one.before, one.after) == ("max(LIMIT, 4)", "min(LIMIT, 4)"):
        assert box.half == 1.5
    if (one.before, one.after) == ("1.5", "3.0"):
        assert by_name(4.0) == -4.0 + 3.0 * 4.0
    if (one.before, one.after) == ("3.0", "6.0"):
        assert box.half == 3.0


def test_participations_that_register_themselves_can_be_altered():
    before = participation.kinds()
    path = _modules.source_of("schemes.fixed_order.participation")
    assert not plant(fixed_order, ast.parse(path.read_text(encoding="utf-8")))
    assert participation.kinds() == before


def test_a_module_with_relative_imports_can_be_altered():
    pairs = importlib.import_module("dpmech.checker.pairs")
    source = Path(pairs.__file__).read_text(encoding="utf-8")
    assert "from .losses import" in source
    assert not plant(pairs, ast.parse(source))
    assert plant(pairs, ast.parse(source.replace("_ROWS = 64", "_ROWS = 65")))
    assert pairs._ROWS == 65
    assert plant(pairs, ast.parse(source))


def test_nothing_altered_is_told(sample):

    assert not plant(sample, ast.parse(SOURCE))


def test_an_altered_constant_reaches_whoever_imported_it(sample, monkeypatch):
    user = type(sys)("dpmech.sample_user")
    user.LIMIT = sample.LIMIT
    monkeypatch.setitem(sys.modules, "dpmech.sample_user", user)
    assert plant(sample, ast.parse(SOURCE.replace("3.0", "6.0")))
    assert user.LIMIT == 6.0


def test_constants_made_of_numbers_reach_their_users_too(sample, monkeypatch):
    source = SOURCE + "\nfrom dpmech.numerics import Ladder\nSTEPS = Ladder((2.0, 1.0))\n"
    exec(compile(source, sample.__file__, "exec"), sample.__dict__)
    user = type(sys)("dpmech.sample_user")
    user.STEPS = sample.STEPS
    monkeypatch.setitem(sys.modules, "dpmech.sample_user", user)
    assert not plant(sample, ast.parse(source))
    assert plant(sample, ast.parse(source.replace("(2.0, 1.0)", "(4.0, 1.0)")))
    assert user.STEPS.rungs == sample.STEPS.rungs == (4.0, 1.0)


def test_what_was_computed_once_for_all_is_computed_anew(sample, monkeypatch):
    other = type(sys)("dpmech.sample_cache")
    other.table = functools.cache(lambda: sample.LIMIT)
    monkeypatch.setitem(sys.modules, "dpmech.sample_cache", other)
    assert other.table() == 3.0
    assert plant(sample, ast.parse(SOURCE.replace("3.0", "6.0")))
    assert other.table() == 6.0


LINES = """
def f(x, y=2 * 3):
    if x > 0:
        return (x
                + 1)
    match x:
        case 0 if y > 1:
            return y - 1
    return x * 2

class C:
    a: int = 4 + 5
"""


def test_an_alteration_concerns_the_lines_of_its_own_statement():
    lines = {one.before: list(one.lines) for one in mutants("sample", LINES)}
    assert lines["x > 0"] == [3]
    assert lines["x + 1"] == [4, 5]
    assert lines["y > 1"] == [7]
    assert lines["y - 1"] == [8]
    assert lines["x * 2"] == [9]
    assert lines["2 * 3"] == list(range(2, 10))  # a default: whoever calls the function
    assert lines["4 + 5"] == []  # computed at import


def test_a_mutant_meets_the_tests_that_execute_its_lines():
    path = "dpmech/numerics/bounds.py"
    recording = Recording(
        {"slow": 3.0, "quick": 1.0, "elsewhere": 0.1},
        {"slow": {path: [4, 5]}, "quick": {path: [5]}, "elsewhere": {"dpmech/numerics/toeplitz.py": [5]}},
    )
    assert recording.tests_of("numerics.bounds", range(4, 5)) == ["slow"]
    assert recording.tests_of("numerics.bounds", range(4, 7)) == ["quick", "slow"]
    assert recording.tests_of("numerics.bounds", range(0)) == ["quick", "slow"]
    assert recording.tests_of("numerics.bounds", range(6, 7)) == []


def test_a_module_has_several_names():
    assert named("points") == ["engines.gaussian_mixture.points"]
    assert (
        named("dpmech.engines.losses.prv")
        == named("dpmech/engines/losses/prv.py")
        == named("engines.losses.prv")
        == ["engines.losses.prv"]
    )
    assert named("sensitivities") == GROUPS["sensitivities"]
    assert named("dpmech/mechanism/sensitivities.py") == ["mechanism.sensitivities"]
    with pytest.raises(
        _modules.UnknownModuleError,
        match=r"engines\.accountant or engines\.convex_order\.accountant or .*balls_in_bins\.accountant",
    ):
        named("accountant")


def test_every_group_names_modules_that_exist_once():
    assert len(set(MODULES)) == len(MODULES)
    assert all(_modules.source_of(module).exists() for module in MODULES)
    folder = ROOT / "dpmech" / "engines"
    accountants = {path.relative_to(folder).with_suffix("") for path in folder.rglob("*.py")}
    accountants = {".".join(path.parts) for path in accountants if path.name != "__init__"}
    counted = {module.partition(".")[2] for module in MODULES if module.startswith("engines.")}
    assert len(accountants) > 30
    assert accountants - counted == {"likelihood_ratios"}  # of audits
    for path in (ROOT / "dpmech" / "verifying").glob("*.py"):
        module = f"verifying.{path.stem}"
        assert module in MODULES or not all_mutants(module), module


@pytest.mark.slow
def test_a_sample_is_drawn_over_the_group():
    group = GROUPS["clipping"]
    parts = {module: drawn(module, 50, 14) for module in group}
    assert sum(map(len, parts.values())) == 50
    assert parts == {module: drawn(module, 50, 14) for module in group}
    assert parts != {module: drawn(module, 50, 15) for module in group}
    assert all(set(parts[module]) <= set(drawn(module, 60, 14)) for module in group)
    assert (
        drawn("numerics.bounds", None, 14)
        == all_mutants("numerics.bounds")
        == drawn("numerics.bounds", 10**6, 14)
    )


LONGER = """
def f(x):
    y = 1
    x = x + 1
    if x > 2:
        x = x * 3
    return x + 1
"""


def drawn_from(source, size, seed=14):
    ranked = sorted(mutants("sample", source), key=lambda one: one.rank(seed))
    return [(one.statement, one.before, one.after) for one in ranked[:size]]


def test_a_change_elsewhere_leaves_the_draw_where_it_is():
    every = drawn_from(LONGER, None)
    assert len(every) == len({one.rank(14) for one in mutants("sample", LONGER)}) == 17
    # A statement before all others, a docstring and a comment move none of the rest.
    longer = LONGER.replace("    y = 1\n", '    """One more."""\n    y = 1\n    z = 4 - y  # new\n')
    assert [one for one in drawn_from(longer, None) if "z" not in one[0]] == every
    # A statement of its own text takes its alterations with it, and no others; equal ones are counted.
    altered = LONGER.replace("x * 3", "x / 3")
    kept = [one for one in every if "x * 3" not in one[0]]
    assert [one for one in drawn_from(altered, None) if "x / 3" not in one[0]] == kept
    assert drawn_from(LONGER, None, seed=15) != every


def test_a_statement_has_its_own_text_without_those_inside():
    statements = {(one.before, one.line): one.statement for one in mutants("sample", LINES)}
    assert statements["x > 0", 3] == "If x > 0"
    assert statements["x + 1", 4] == "Return x + 1"
    assert statements["y > 1", 7] == "match_case 0 y > 1"
    assert statements["2 * 3", 2].startswith("FunctionDef x, y=2 * 3")


def test_equal_statements_are_told_apart_by_their_order():
    twice = "def f(x):\n    x = x + 1\n    x = x + 1\n    return 1 + x"
    ones = [one for one in mutants("sample", twice) if one.before == "1" and one.after == "2"]
    assert [(one.count, one.ordinal, one.statement) for one in ones] == [
        (0, 0, "Assign x x + 1"),
        (1, 1, "Assign x x + 1"),
        (2, 0, "Return 1 + x"),
    ]
    assert len({one.rank(14) for one in ones}) == 3


def test_the_digest_of_a_module_tells_what_it_computes():
    digest = _modules.digest_of(SOURCE)
    same = SOURCE.replace("import math", "import math  # for the root\nfrom os import path")
    same = same.replace('x: "2 * x"', "x: int").replace("docstring with 7", "docstring")
    assert same != SOURCE
    assert _modules.digest_of(same) == digest
    for before, after in (("scale * x", "x * scale"), ("1.5", "1.25"), ("x < 0", "x <= 0"), ("3.0", "3")):
        assert _modules.digest_of(SOURCE.replace(before, after)) != digest


def test_every_reason_names_an_alteration_that_exists():
    reasons = load_reasons()
    known = {one.key for module in {key[0] for key in reasons} for one in all_mutants(module)}
    assert reasons.keys() <= known
    assert all(len(why) > 10 for why in reasons.values())


def test_a_reason_stands_once(tmp_path):
    path = tmp_path / "survivors.toml"
    entry = '[[survivor]]\nmodule = "a"\nfunction = "f"\nwhy = "because"\nchanges = [["x", "y"]]\n'
    path.write_text(entry)
    assert load_reasons(path) == {("a", "f", "x", "y", 0): "because"}
    path.write_text(entry * 2)
    with pytest.raises(ValueError, match="stands twice"):
        load_reasons(path)


CODE = _modules.code_of("numerics.bounds")
TALLY = Tally("numerics.bounds", 29, 10, 8, 1, 1, [["g", "a + b", "a - b", 0]], 10, 14, "abc", CODE)


def test_results_are_kept_module_by_module(tmp_path):
    path = tmp_path / "results.json"
    other = dataclasses.replace(TALLY, module="numerics.toeplitz", sample=None, seed=None)
    _results.keep(TALLY, path)
    _results.keep(other, path)
    _results.keep(dataclasses.replace(TALLY, commit="def"), path)
    assert load_results(path) == {
        "numerics.bounds": dataclasses.replace(TALLY, commit="def"),
        "numerics.toeplitz": other,
    }


def test_what_stood_open_is_added_to_the_rest(tmp_path):
    again = dataclasses.replace(TALLY, tried=1, found=1, late=0, explained=0, open=[], commit="def")
    together = runner._together(TALLY, again)
    assert together == dataclasses.replace(TALLY, found=9, open=[], commit="def")


def test_a_reason_settles_an_open_mutant():
    reasons = {("numerics.bounds", "g", "a + b", "a - b", 0): "because it is so"}
    assert _results.settled(TALLY, reasons) == dataclasses.replace(TALLY, open=[], explained=2)
    assert _results.settled(TALLY, {("numerics.toeplitz", *TALLY.open[0]): "elsewhere"}) == TALLY


def test_open_mutants_are_tried_again_and_changed_modules_anew(monkeypatch):
    first, *rest = all_mutants("numerics.bounds")
    tally = dataclasses.replace(TALLY, open=[list(first.key[1:])])
    chosen = {"numerics.bounds": [first, *rest], "numerics.toeplitz": all_mutants("numerics.toeplitz")}
    assert runner.still_open(chosen, {"numerics.bounds": tally}) == (
        {"numerics.bounds": tally},
        {"numerics.bounds": [first]},
    )
    tally = dataclasses.replace(tally, code="that of another state")
    assert runner.still_open(chosen, {"numerics.bounds": tally}) == ({}, {"numerics.bounds": [first, *rest]})


def test_a_module_of_which_nothing_was_drawn_has_a_row(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "commit", lambda: "abc")
    monkeypatch.setattr(runner, "KILLERS", tmp_path / "killers.json")
    monkeypatch.setattr(runner, "load_reasons", dict)
    chosen = {"numerics.bounds": [], "numerics.toeplitz": all_mutants("numerics.toeplitz")[:1]}
    runner.Books(chosen, (1, 14), tmp_path / "r.json").close_untouched()
    (tally,) = load_results(tmp_path / "r.json").values()
    count = len(all_mutants("numerics.bounds"))
    assert tally == Tally("numerics.bounds", count, 0, 0, 0, 0, [], 1, 14, "abc", CODE)


def test_the_page_says_what_was_run_and_what_was_not(tmp_path):
    page = tmp_path / "mutation.md"
    other = Tally("numerics.toeplitz", 29, 29, 28, 1, 1, [], None, None, "abc", "that of another state")
    earlier = dataclasses.replace(TALLY, module="numerics.series", by_place=True)
    gone = dataclasses.replace(TALLY, module="numerics.gone", open=[], explained=2)
    write_page(
        page,
        {one.module: one for one in (TALLY, other, earlier, gone)},
        {
            ("numerics.bounds", "f", "x", "y", 0): "It is squared.",
            ("numerics.roots", "", "1.0", "2.0", 0): "It is squared.",
            ("numerics.bounds", "f", "x", "y", 1): "It is squared.",
        },
    )
    text = page.read_text(encoding="utf-8")
    assert "| `numerics.bounds` | 29 | 10 | 8 | 1 | 1 | 1 | 10 in the group, seed 14 | abc | no |" in text
    assert "| `numerics.toeplitz` | 29 | 29 | 28 | 1 | 1 | 0 | all | abc | yes |" in text
    assert (
        "| `numerics.series` | 29 | 10 | 8 | 1 | 1 | 1 | 10 in the group, seed 14, by place | abc | yes |"
        in text
    )
    assert "| `numerics.gone` | 29 | 10 | 8 | 1 | 2 | 0 | 10 in the group, seed 14 | abc | yes |" in text
    absent = dict(re.findall("^- `(.*?)`: (.*)$", text.partition("No results are on file")[2], re.MULTILINE))
    assert "`ledger`" in absent["ledgers"]
    assert "`roots`" in absent["numerics"]
    assert "`bounds`" not in absent["numerics"]
    assert (
        "| module | mutants | tried | detected | timed out | explained | open | sample | commit | changed |"
        in text
    )
    opened = "- `numerics.bounds.g`: `a + b` to `a - b`.\n- `numerics.series.g`: `a + b` to `a - b`."
    assert f"## Open\n\n{opened}\n\n## Explained" in text
    assert "- It is squared. `numerics.bounds.f` (2), `numerics.roots` (1)." in text


def test_the_page_is_that_of_the_results(tmp_path):
    """But for what has changed since it was written, which it does not claim to know."""

    def dated(path):
        return re.sub(r"\| (yes|no) \|$", "| |", path.read_text(encoding="utf-8"), flags=re.MULTILINE)

    page = tmp_path / "mutation.md"
    write_page(page, load_results(), load_reasons())
    assert dated(page) == dated(ROOT / "docs" / "mutation.md")


def test_the_results_account_for_every_mutant():
    reasons = load_reasons()
    for name, tally in load_results().items():
        assert tally.tried == tally.found + tally.explained + len(tally.open), name
        # What was altered may be gone with its reason where the code is another by now.
        assert tally.changed or tally.explained <= sum(key[0] == name for key in reasons), name
        assert re.fullmatch("[0-9a-f]{16}", tally.code), name
        assert tally.tried == tally.mutants or tally.sample, name
        assert re.fullmatch("[0-9a-f]{7,40}", tally.commit), name


@pytest.mark.slow
def test_a_run_tells_tested_formulas_from_untested_ones(tmp_path):
    names = ["noise_cost", "--tests", "noise_cost", "--seconds", "60", "--page", str(tmp_path / "m.md")]
    command = [sys.executable, "-m", "verification.mutation", *names, "--results", str(tmp_path / "r.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 open" in done.stdout
    assert (tmp_path / "m.md").exists()


def test_an_unknown_module_is_refused(capsys):
    with pytest.raises(SystemExit):
        runner.main(["nothing"])
    assert "no one module nothing" in capsys.readouterr().err


FILE = """
import pytest
from dpmech.numerics import BOUND, Bounds, Provenance

@pytest.fixture(scope="module")
def shared():
    return Bounds(1.0, 2.0, BOUND, Provenance("shared"))

def test_one(shared):
    assert True

def test_two(shared):
    assert True

def test_three():
    assert True

@pytest.mark.slow
def test_slow():
    raise AssertionError
"""


@pytest.mark.slow
def test_a_recording_has_the_lines_of_fixtures_too(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(_recording, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(_recording, "_import_once", lambda: None)
    path = ROOT / "build" / "mutation" / "test_recorded.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(FILE, encoding="utf-8")
    try:
        recording = _recording.record([path], ["numerics.bounds"])
        assert sorted(test.partition("::")[2] for test in recording.seconds) == [
            "test_one",
            "test_three",
            "test_two",
        ]
        found = {test.partition("::")[2] for test in recording.tests_of("numerics.bounds", range(0))}
        assert found == {"test_one", "test_two"}
        with monkeypatch.context() as patch:
            patch.setattr(_recording, "_recorded_apart", None)
            assert (
                _recording.record([path], ["numerics.bounds"]).seconds == recording.seconds
            )  # not run again
        path.write_text(FILE.replace("True", "False", 1), encoding="utf-8")
        assert not any("test_one" in test for test in _recording.record([path], ["numerics.bounds"]).seconds)
        assert "left out, for it fails when it is recorded" in capsys.readouterr().err
    finally:
        path.unlink()
