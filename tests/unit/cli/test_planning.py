import pytest

from dpmech.cli import planning
from tests.support.command_line import done, run
from tests.support.reviewed import Page

PLAN = ("plan", "--dataset-size", "120", "--delta", "1e-4", "--epochs", "2", "--batch-size", "20, 40,20")
RANGE = ("--min-eps", "1", "--max-eps", "1.05")


@pytest.mark.slow
def test_a_page_is_written_with_each_plan_once(tmp_path):
    path = tmp_path / "planner.html"
    result = done(*PLAN, *RANGE, "--sampling", "min-sep", "--out", path)
    assert result.stdout == f"planner for 2 plans: {path}\n"
    assert "a plan takes about" in result.stderr
    page = Page(path.read_text(encoding="utf-8"))
    assert page.faults == []
    assert page.elements.count("details") == 2


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (("--out", "no/p.html"), "--out must be a file in a folder that exists"),
        (("--out", "p.txt"), "--out must be a file that ends in .htm, .html"),
        (("--out", "p.html", "--max-eps", "0.1"), "--max-eps must be above --min-eps 1"),
        ((), "missing: --out"),
        (("--out", "p.html", "--eps", "8"), "no option --eps: the page covers a range, from --min-eps to "),
        (("--out", "p.html", "--sampling", "poison"), "did you mean poisson?"),
        (("--out", "p.html", "--strategies", "identity"), "--strategies must be families without"),
        (("--out", "p.html", "--strategies", "bandmf:bands=400"), "bands must be an integer in [1, 12]"),
    ],
)
def test_before_anything_is_computed(call, words, tmp_path, monkeypatch):
    def computed(*_arguments, **_settings):
        raise AssertionError("computed before everything was looked at")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(planning, "preview_of", computed)
    result = run(*PLAN, *RANGE, *call)
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr
    assert list(tmp_path.iterdir()) == []


class _ReachedError(Exception):
    """Everything was looked at."""


@pytest.mark.parametrize(
    ("sizes", "samplings", "left"),
    [
        (PLAN, ["poisson", "random-allocation", "balls-in-bins", "min-sep"], []),
        (
            ("plan", "--dataset-size", "50000", "--delta", "1e-5", "--epochs", "10,20,30,40,50,60",
             "--batch-size", "64,128", "--min-eps", "0.5", "--max-eps", "16"),
            ["poisson", "min-sep"],
            ["random-allocation", "balls-in-bins"],
        ),
    ],
)  # fmt: skip
def test_slow_rows_are_there_by_default_unless_they_take_long(tmp_path, monkeypatch, sizes, samplings, left):
    given = {}

    def computed(*_arguments, **settings):
        given.update(settings)
        raise _ReachedError

    monkeypatch.setattr(planning, "preview_of", computed)
    result = run(*sizes, "--out", tmp_path / "planner.html")
    assert given["samplings"] == samplings
    noted = [line.split()[3] for line in result.stderr.splitlines() if ": without " in line]
    assert sorted(noted) == sorted(left)
    assert all(f"without {name} (" in result.stderr for name in left)


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ([7.4], "this takes about 7 seconds of one core"),
        ([7.4, 7.2], "a plan takes about 7 seconds of one core, all 2 about 15 seconds"),
        ([60.0, 600.0], "a plan takes about 60 seconds to 10 minutes of one core, all 2 about 11 minutes"),
        ([9000.0], "this takes about 2.5 hours of one core"),
    ],
)
def test_the_time_is_stated_in_words(times, words):
    assert planning.expected(times) == words
