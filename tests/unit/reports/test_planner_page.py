import dataclasses
import importlib.resources
import json
import random
import shlex

import pytest

from dpmech.numerics import up
from dpmech.reports import planner_page, preview_of
from dpmech.reports.grids import Grid
from dpmech.reports.previews import PreviewRow
from tests.support.browser import browser, check_layout, shown
from tests.support.command_line import told
from tests.support.reviewed import Page


@pytest.fixture(scope="module")
def preview():
    return preview_of(120, 1e-4, epochs=[2, 3], batch_sizes=[20, 40], low=1.0, high=1.15)


@pytest.fixture(scope="module")
def text(preview):
    return planner_page(preview, made="2026-11-23")


@pytest.fixture(scope="module")
def script(text):
    return script_of(text)


def script_of(text):
    """The page's own functions, with the data that is embedded."""
    quickjs = pytest.importorskip("quickjs", reason="of the extra `test`")
    context = quickjs.Context()
    context.eval(text.rsplit("<script>", 1)[1].split("</script>")[0])
    data = text.split('<script type="application/json" id="data">')[1].split("</script>")[0]
    context.eval(f"const data = {data};")
    return context


@pytest.mark.slow
def test_the_script_says_what_python_says(preview, script):
    chance = random.Random(1)
    edges = [preview.low, preview.high, *preview.shared.eps[1:5], 0.5, 2.0]
    for eps in [*edges, *(1.0 + 0.15 * chance.random() for _ in range(40))]:
        for number, plan in enumerate(preview.plans):
            for place, row in enumerate(plan.rows):
                found = script.eval(f"numberAt(data, data.plans[{number}].rows[{place}], {eps!r}, 'sigma')")
                assert found == preview.sigma(row, eps)
                error = script.eval(f"numberAt(data, data.plans[{number}].rows[{place}], {eps!r}, 'rmse')")
                best = preview.at(row, eps)
                assert error == (None if best is None else best[1] * best[0].rmse)


def with_sampled_rows(preview):
    """The preview with a row of two strategies and a row without numbers in place of two others."""
    plans = []
    for plan in preview.plans:
        blt = plan.rows[3].variants[0]
        grids = Grid((1.0, 1.05, 1.1), (2.0, 1.9, 1.8)), Grid((1.04, 1.15), (1.7, 1.6))
        two = tuple(
            dataclasses.replace(
                blt, grid=grid, rmse=rmse, options=(("--column-normalized", ""), ("--lam", name))
            )
            for grid, rmse, name in zip(grids, (3.0, 3.4), ("1", "2"), strict=True)
        )
        rows = (
            *plan.rows,
            PreviewRow("BLT, Balls-in-Bins", "balls-in-bins", two, 12.0),
            PreviewRow("BISR, Balls-in-Bins", "balls-in-bins", (), 0.0, "<too> many bins"),
        )
        plans.append(dataclasses.replace(plan, rows=rows))
    return dataclasses.replace(preview, plans=tuple(plans))


def test_of_several_strategies_the_script_takes_the_one_that_python_takes(preview):
    found = with_sampled_rows(preview)
    context = script_of(planner_page(found, made="2026-11-23"))
    row = found.plans[0].rows[4]
    names = set()
    for eps in (1.0, 1.02, 1.04, 1.05, 1.09, 1.1, 1.12, 1.15):
        variant, sigma = found.at(row, eps)
        best = f"variantAt(data, data.plans[0].rows[4], {eps!r})"
        assert context.eval(f"{best}.sigma") == sigma
        command = context.eval(f"commandOf(data, data.plans[0], data.plans[0].rows[4], {eps!r})")
        assert f"dpmech calibrate --column-normalized --lam {variant.options[1][1]} --dataset" in command
        names.add(variant.options[1][1])
    assert names == {"1", "2"}
    assert context.eval("variantAt(data, data.plans[0].rows[5], 1.1)") is None
    assert context.eval("commandOf(data, data.plans[0], data.plans[0].rows[5], 1.1)") == ""


def test_sampled_rows_are_shown_and_the_page_states_the_largest_excess(preview, tmp_path):
    text = planner_page(with_sampled_rows(preview), made="2026-11-23")
    words = " ".join("".join(Page(text).text).split())
    assert "at most 12 % above" in words
    assert "assigned to a batch of the epoch once" in words
    assert "not included" in words  # random allocation
    assert "Correlated noise under Balls-in-Bins often" in words
    path = tmp_path / "sampled.html"
    path.write_text(text, encoding="utf-8")
    with browser() as opened, shown(opened, path, "phone") as page:
        check_layout(page)
        page.select_option("#strategy", label="BISR, Balls-in-Bins")
        assert "<too> many bins" in page.inner_text("#cost")
        assert page.is_disabled("#copy")
        page.select_option("#strategy", label="BLT, Balls-in-Bins")
        assert "at most 12 % less" in page.inner_text("#cost")
        check_layout(page)


@pytest.mark.parametrize("value", [2.9336702384, 0.00123451, 4.005, 9999.6, 1e-7, 3.0, 1.0000001])
def test_the_script_rounds_up_as_python_does(value, script):
    assert float(script.eval(f"rounded({value!r}, 4, true)")) == float(up(value, 4))
    assert float(script.eval(f"rounded({value!r}, 2, false)")) <= value


def test_the_command_certifies_what_was_shown(preview, script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for place, row in enumerate(preview.plans[0].rows):
        command = script.eval(f"commandOf(data, data.plans[0], data.plans[0].rows[{place}], 1.11)")
        words = shlex.split(command)
        assert words[:2] == ["dpmech", "calibrate"]
        (tmp_path / "certificate.json").unlink(missing_ok=True)
        found = told(*words[1:])
        assert found["certificate"] == "certificate.json"
        assert 1.0 <= preview.sigma(row, 1.11) / found["sigma"] <= 1.03


def test_without_script_there_are_tables(preview, text):
    page = Page(text)
    assert page.faults == []
    words = " ".join("".join(page.text).split())
    assert "PREVIEW, not a certificate" in words
    assert page.elements.count("details") == 4
    row = preview.plans[0].rows[3]
    assert up(preview.sigma(row, 1.0), 4) in words
    assert ("section", "hidden", None) in page.attributes


def test_the_page_asks_nobody_for_anything(text):
    page = Page(text)
    assert [one for one in page.attributes if one[1] in {"src", "href", "action"}] == []
    assert text.count("default-src 'none'") == 1
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    assert data["delta"] == 1e-4


def test_the_script_is_shipped_as_it_is(text):
    source = importlib.resources.files("dpmech.reports").joinpath("templates/planner.js").read_text("utf-8")
    assert source in text


@pytest.mark.parametrize(
    "view", ["phone", *(pytest.param(view, marks=pytest.mark.slow) for view in ("desk", "night"))]
)
def test_changing_a_field_changes_command_numbers_and_curve(view, text, tmp_path):
    path = tmp_path / "planner.html"
    path.write_text(text, encoding="utf-8")
    with browser() as opened, shown(opened, path, view) as page:
        check_layout(page)

        def state():
            ids = ("command", "rows", "over-eps", "over-batch")
            return {name: page.locator(f"#{name}").inner_html() for name in ids}

        first = state()
        assert "--eps 1 " in first["command"]
        page.fill("#eps", "1.14")
        second = state()
        assert "--eps 1.14 " in second["command"]
        assert second["rows"] != first["rows"]
        assert second["over-batch"] != first["over-batch"]
        assert "--batch-size 20 " in second["command"]
        page.select_option("#batch", "40")
        third = state()
        assert "--batch-size 40 " in third["command"]
        assert third["over-eps"] != second["over-eps"]
        page.select_option("#epochs", "3")
        assert "--epochs 3 " in state()["command"]
        page.select_option("#measure", "noise")
        assert state()["over-eps"] != third["over-eps"]
        page.select_option("#strategy", label="BISR")
        assert "--strategy bisr --bands" in state()["command"]
        page.fill("#eps", "9")
        assert state()["command"] == ""
        assert page.is_disabled("#copy")
        page.fill("#eps", "1.1")
        page.click("#copy")
        assert page.evaluate("getSelection().toString()").startswith("dpmech calibrate")
        check_layout(page)
    with browser() as opened, shown(opened, path, view, scripts=False) as page:
        assert not page.is_visible("#planner")
        page.click("summary >> nth=0")
        assert page.is_visible("table >> nth=1")
