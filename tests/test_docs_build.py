"""The pages as built: formulas without a script, a group for every page, figures from their scripts."""

import importlib.util
import json
import pathlib
import re
import types

import pytest

import dpmech as dm
from dpmech.cli import main
from dpmech.mechanism.noise_cost import noise_cost
from dpmech.numerics.printed import times, up

ROOT = pathlib.Path(__file__).parents[1]
DOCS = ROOT / "docs"
GROUPS = ("Start", "Guides", "Reference", "Theory", "Project")


def loaded(path):
    """A script of the documentation as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def mathml():
    pytest.importorskip("latex2mathml")
    pytest.importorskip("sphinx")
    return loaded(DOCS / "mathml.py").mathml


def test_formulas_become_mathml(mathml):
    found = mathml(r"\sigma \le \frac{1}{2}", display=False)
    assert found.startswith("<math")
    assert "<mfrac>" in found
    assert 'display="inline"' in found
    assert 'display="block"' in mathml("x", display=True)
    assert mathml(r"\bigl\|C\bigr\|", display=False) == mathml(r"\|C\|", display=False)
    assert "<mtable" in mathml("a &= b \\\\\n c &= d", display=True)


def test_what_is_no_formula_is_named(mathml):
    with pytest.raises(ValueError, match="nonsense"):
        mathml(r"\nonsense{x}", display=False)
    with pytest.raises(ValueError, match="no MathML"):
        mathml(r"\frac{1}{", display=False)
    with pytest.raises(ValueError, match="no MathML"):
        mathml("a & b", display=False)


def test_a_number_is_one_box_but_not_in_code():
    pytest.importorskip("sphinx")
    nodes = pytest.importorskip("docutils.nodes")
    document = pytest.importorskip("docutils.utils").new_document("page")
    code = nodes.literal("", "1e-5")
    document += nodes.paragraph("", "", nodes.Text("delta 1.5e-06, then 2e-9; e-mail, 0.5 %"), code)
    loaded(DOCS / "whole_numbers.py").WholeNumbers(document).run()
    boxes = [box.astext() for box in document.findall(nodes.inline) if box["classes"] == ["number"]]
    assert boxes == ["1.5e-06", "2e-9", "0.5 %"]
    assert document.astext() == "delta 1.5e-06, then 2e-9; e-mail, 0.5 %1e-5"


def test_no_setting_names_a_host():
    assert "://" not in (DOCS / "conf.py").read_text(encoding="utf-8")
    assert "://" not in (DOCS / "static" / "dpmech.css").read_text(encoding="utf-8")


def test_every_page_is_in_one_group_of_the_landing_page():
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    trees = re.findall(r"```\{toctree\}\n:caption: ([^\n]*)\n:hidden:\n\n(.*?)```", text, re.DOTALL)
    assert tuple(caption for caption, _ in trees) == GROUPS
    listed = [name for _, names in trees for name in names.split()]
    papers = re.findall(r"^verification_\w+$", (DOCS / "verification.md").read_text(), re.MULTILINE)
    assert sorted(listed + papers) == sorted({page.stem for page in DOCS.glob("*.md")} - {"index"})


@pytest.fixture(scope="module")
def command_pages():
    pytest.importorskip("sphinx")
    return loaded(DOCS / "command_pages.py")


def test_every_command_has_a_page_with_all_its_options(command_pages):
    found = dict(command_pages.pages())
    known = [(("dpmech",), main)]
    while known:
        name, command = known.pop()
        page = found.pop("-".join(name))
        assert page.startswith(f"# {' '.join(name)}\n")
        options = [typed for one in command.params for typed in one.opts if typed.startswith("-")]
        assert all(f"`{one}" in page or f", {one}" in page for one in options)
        typed = " ".join(page.replace("\\\n", " ").split())
        assert all(" ".join(one.split()) in typed for one in command.examples)
        known += [((*name, one), below) for one, below in getattr(command, "commands", {}).items()]
    assert not found


def test_pages_of_commands_show_markup_as_it_stands(command_pages):
    assert command_pages.plain("n / epochs * [x] `a_b` $") == r"n / epochs \* \[x\] `a_b` \$"
    assert command_pages.plain("with --new-one, `--out`") == "with `--new-one`, `--out`"


def test_the_reference_links_every_command(command_pages):
    text = (DOCS / "command_line.md").read_text(encoding="utf-8")
    names = [name for name, _ in command_pages.pages() if name not in {"dpmech", "dpmech-ledger"}]
    assert len(names) >= 15
    assert all(f"(generated/commands/{name}.md)" in text for name in names)


def results(name):
    return json.loads((DOCS / "figures" / f"{name}.json").read_text(encoding="utf-8"))


def test_the_controls_on_a_small_language_model_are_those_of_their_runs():
    found = {
        name: (
            sum(run["losses"][-1] for run in runs) / len(runs),
            [run["clamped"] for run in runs],
            [run["losses"] for run in runs],
        )
        for name, runs in results("noise_share_controls").items()
    }
    stated = (DOCS / "figures" / "noise_share_controls.txt").read_text(encoding="utf-8")
    rows = {
        line.split(" | ")[0].strip("| "): float(line.split(" | ")[1]) for line in stated.splitlines()[2:14]
    }
    assert rows == {name: round(loss, 3) for name, (loss, *_) in found.items()}
    adam = min(loss for name, (loss, *_) in found.items() if name.startswith("DP-Adam, rate"))
    corrected = {name: one for name, one in found.items() if name.startswith("DP-AdamBC")}
    best = min(loss for loss, *_ in corrected.values())
    page = " ".join((DOCS / "choosing.md").read_text(encoding="utf-8").split())
    assert (
        f"The best of three floors ({best:.3f}) is close to "
        f"the best of four learning rates of DP-Adam ({adam:.3f})" in page
    )
    largest, alone = corrected["DP-AdamBC, floor 45 Phi"], found["floor only, 45 Phi"]
    assert largest[1] == alone[1] == corrected["DP-AdamBC, floor 4.5 Phi"][1] == [1.0, 1.0]
    for one, other in zip(largest[2], alone[2], strict=True):
        assert one == pytest.approx(other, rel=1e-5)
    assert found["DP-Adam, denoised"][0] > found["DP-Adam, rate 1x"][0]
    assert min(found[name][0] for name in ("DP-Muon", "DP-MuonBC")) > adam


def test_tables_of_the_pages_are_those_of_the_numbers():
    for name in ("error_against_eps", "which_strategy", "side_by_side"):
        script = loaded(DOCS / "examples" / f"{name}.py")
        stated = (DOCS / "figures" / f"{name}.txt").read_text(encoding="utf-8")
        assert script.table(results(name)) == stated
    for name, plan in loaded(DOCS / "examples" / "family_gaps.py").TABLES.items():
        assert plan.table(results("family_gaps")) == (DOCS / "figures" / name).read_text(encoding="utf-8")


def test_the_map_of_balls_in_bins_is_that_of_its_points():
    script, rows = loaded(DOCS / "figures" / "bins_map.py"), results("bins_map")
    stated = (DOCS / "figures" / "bins_map.txt").read_text(encoding="utf-8")
    assert script.table(rows) == stated
    page = (ROOT / "dpmech" / "schemes" / "balls_in_bins" / "page.md").read_text(encoding="utf-8")
    assert stated in page
    # a point that moved would be seen
    rows[0]["sigma"] *= 1.001
    assert script.table(rows) not in page
    assert all(re.fullmatch("[0-9a-f]{8}", one["commit"]) for one in rows)


def test_rows_where_another_library_is_ahead_say_why():
    script, found = loaded(DOCS / "examples" / "side_by_side.py"), results("side_by_side")
    assert {row["package"] for row in found} == {
        "dp_accounting", "prv_accountant", "opacus", "gdpnum", "riskcal", "jax_privacy"
    }  # fmt: skip
    assert all("error" not in row for row in found)
    for row, line in zip(found, script.table(found).splitlines()[2:], strict=False):
        assert script.ahead(row) == bool(re.search(r"\(\d\) \|", line)), line
    # Where both state an upper bound of one quantity, none is more than 0.1 % lower than dpmech's.
    assert all(row["answer"] > row["dpmech"] * 0.999 for row in found if row["how"] != "estimate")


@pytest.mark.slow
@pytest.mark.exhaustive
def test_dpmech_answers_the_same_beside_other_libraries():
    script = loaded(DOCS / "examples" / "side_by_side.py")
    stated = {row["question"]: row["dpmech"] for row in results("side_by_side")}
    for question, own, _ in script.rows():
        assert own() == pytest.approx(stated[question], rel=1e-4), question


def test_the_figure_has_its_baseline_where_dp_sgd_is_poisson_sampled():
    script = loaded(DOCS / "examples" / "error_against_eps.py")
    assert script.SERIES[0][:2] == ("DP-SGD", "Poisson sampling")
    found = results("error_against_eps")
    sgd, fixed, lam, blt = (found[f"{name} ({sampling})"] for name, sampling, _ in script.SERIES)
    # In a fixed order the same plan does worse at small eps, and the captions say so.
    assert fixed["1"][0] > sgd["1"][0]
    assert all(blt[eps][0] < lam[eps][0] < sgd[eps][0] for eps in sgd)
    readme = " ".join((DOCS.parent / "README.md").read_text(encoding="utf-8").split())
    gain = re.search(
        r"stores three vectors of the model's size, under Balls-in-Bins. Its error of \S+ is (\S+)x lower",
        readme,
    )
    assert gain.group(1) == times(sgd["8"][0], blt["8"][0], 3)


def test_the_fit_of_the_first_row_is_the_best_of_its_table():
    script, found = loaded(DOCS / "examples" / "family_gaps.py"), results("family_gaps")
    for plan in script.TABLES.values():
        for eps in plan.budgets:
            errors = [found[plan.key(row, eps)] for row in plan.rows]
            assert min(errors) == errors[0]


def test_what_the_page_says_of_the_large_plan():
    script, found = loaded(DOCS / "examples" / "family_gaps.py"), results("family_gaps")
    best, three, one, lam, sgd = (found[script.LARGE.key(row, 8.0)] for row in script.LARGE.rows)
    page = " ".join((DOCS / "fitting.md").read_text(encoding="utf-8").split())
    claim = re.search(r"([0-9.]+) % higher for `BLT` with three buffers, and ([0-9.]+) % higher", page)
    assert claim is not None
    assert [float(above) for above in claim.groups()] == [
        round(100.0 * (error / best - 1.0), 1) for error in (three, one)
    ]
    assert best < three < one < lam < sgd


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_best_matrix_found_stores_no_more_vectors_than_bands():
    plan = loaded(DOCS / "examples" / "family_gaps.py").SMALL
    _, family, sizes = plan.rows[0]
    for eps in plan.budgets:
        fit = dm.optimize(family, dm.BallsInBins(plan.bins), n=plan.n, eps=eps, delta=1e-5, **sizes)
        assert 0 < noise_cost(fit.strategy).buffers <= 19
        assert fit.error == pytest.approx(results("family_gaps")[plan.key(plan.rows[0], eps)], rel=0.012)


def test_what_the_page_reads_off_its_table():
    script = loaded(DOCS / "examples" / "which_strategy.py")
    found = {name: one["rmse"] for name, one in results("which_strategy").items()}
    rows = [f"{row} / {sampling}" for row, sampling, _ in script.ROWS]
    sgd, allocated, fixed, banded, lam, _, blt = rows

    def best(plan, eps):
        return min(rows, key=lambda row: found[f"{row} / {plan} / {eps}"])

    page = " ".join((DOCS / "choosing.md").read_text(encoding="utf-8").split())
    saved = re.search(r"has (\d+) % lower error than DP-SGD at eps 1, and (\S+)x lower error at eps 8", page)
    assert saved.groups() == (
        str(int(100 * (1 - found[f"{blt} / CIFAR-10 / 1"] / found[f"{sgd} / CIFAR-10 / 1"]))),
        times(found[f"{sgd} / CIFAR-10 / 8"], found[f"{blt} / CIFAR-10 / 8"]),
    )
    assert 0.99 < found[f"{blt} / digits / 1"] / found[f"{sgd} / digits / 1"] < 0.995
    for plan, _ in script.PLANS:
        for eps in (1, 8):
            assert best(plan, eps) == (allocated if (plan, eps) == ("digits", 1) else blt)
            few = plan == "digits"
            assert (found[f"{lam} / {plan} / {eps}"] < 1.005 * found[f"{blt} / {plan} / {eps}"]) == few
            assert few or found[f"{banded} / {plan} / {eps}"] < found[f"{sgd} / {plan} / {eps}"]
        assert found[f"{fixed} / {plan} / 8"] < found[f"{sgd} / {plan} / 8"]
        assert found[f"{fixed} / {plan} / 1"] > found[f"{sgd} / {plan} / 1"]


# What is certified by a sample moves from run to run; fits end within their tolerance.
@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["error_against_eps", "which_strategy", "family_gaps"])
def test_the_numbers_of_the_figures_are_found_again(name):
    script = loaded(DOCS / "examples" / f"{name}.py")
    if name == "error_against_eps":
        again = {
            f"{row} ({sampling})": (function(8.0)[0], results(name)[f"{row} ({sampling})"]["8"][0])
            for row, sampling, function in script.SERIES
        }
    elif name == "family_gaps":
        plan = script.SMALL
        again = {row[0]: (plan.error(row, 1.0), results(name)[plan.key(row, 1.0)]) for row in plan.rows}
    else:
        place, plan = script.PLANS[0]
        again = {
            f"{row} / {sampling}": (
                function(plan, 8.0)["rmse"],
                results(name)[f"{row} / {sampling} / {place} / 8"]["rmse"],
            )
            for row, sampling, function in script.ROWS
        }
    for row, (found, stated) in again.items():
        assert found == pytest.approx(stated, rel=0.012), row


def test_a_figure_is_drawn_and_goes_on_from_its_numbers(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    script = loaded(DOCS / "examples" / "error_against_eps.py")
    (tmp_path / "error_against_eps.json").write_text(
        json.dumps(results("error_against_eps")), encoding="utf-8"
    )
    assert script.main([str(tmp_path)]) == 0
    assert (tmp_path / "error_against_eps.png").read_bytes()[:4] == b"\x89PNG"
    printed = capsys.readouterr().out
    assert printed == (DOCS / "figures" / "error_against_eps.txt").read_text(encoding="utf-8")
    assert up(results("error_against_eps")["DP-SGD (Poisson sampling)"]["8"][0], 4) in printed


def test_one_command_renews_the_figures_and_says_what_moved(tmp_path, capsys):
    script = loaded(DOCS / "figures" / "renew.py")
    shown = {one.name for one in (DOCS / "figures").iterdir() if one.suffix in {".json", ".txt", ".png"}}
    # A picture of the planner in a browser; times alone.
    assert shown - {name for one in script.FOUND.values() for name in one.files} == {
        "planner.png",
        "clipping_costs.txt",
    }
    assert all((DOCS / one.script).is_file() for one in script.FOUND.values())
    figures = tmp_path / "pages"
    figures.mkdir()
    table = "| noise | eps 1 | CPU s |\n|---|---|---|\n| a | 2.5 | 7 |\n| b | none | 8 |\n"
    (figures / "table.txt").write_text(table, encoding="utf-8")
    (figures / "numbers.json").write_text('{"a": [1.0, 2.0], "seconds": 3.0}', encoding="utf-8")
    (tmp_path / "draw.py").write_text(
        "import pathlib, sys\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "(folder / 'table.txt').write_text(" + repr(table.replace("2.5", "2.6").replace("7", "9")) + ")\n"
        '(folder / \'numbers.json\').write_text(\'{"a": [1.0005, 2.0], "seconds": 4.0, "new": 1}\')\n',
        encoding="utf-8",
    )
    script.FIGURES, script.DOCS = figures, tmp_path
    script.FOUND = {"draw": script.Figure("draw.py", 0.1, ("table.txt", "numbers.json"))}
    assert script.main([str(tmp_path / "new"), "draw"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "table.txt / a / eps 1 1: 2.5 -> 2.6 (+4.00 %)",
        "numbers.json / new: nothing -> 1",
    ]
    assert script.main([str(tmp_path / "new"), "--write"]) == 1
    assert script.main([str(tmp_path / "new")]) == 0
    assert capsys.readouterr().out.endswith("draw: no number moved\n")
    with pytest.raises(SystemExit, match="2"):
        script.main([str(tmp_path / "new"), "drawn"])
    assert "NAME must be one of draw, got drawn" in capsys.readouterr().err


def test_every_object_of_the_reference_has_an_example():
    without = {
        name
        for name in dm.__all__
        if not isinstance(getattr(dm, name), types.ModuleType)
        and ">>>" not in (getattr(dm, name).__doc__ or "")
    }
    assert without == set()
