"""The report as a person sees it, in a browser."""

import datetime

import pytest

from dpmech.reports import as_html
from tests.support.browser import CUT, FAINT, OVERFLOWING, SMALL, VIEWS, browser, check_layout, shown
from tests.support.reviewed import HOSTILE, review_of, run_of, small

MADE = datetime.date(2026, 11, 23)


@pytest.fixture(scope="module")
def opened():
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("pages")
    own = small().certificate(1.0, 10.0)
    (place / "good.html").write_text(
        as_html(review_of(run_of(own), claim_only=False), made=MADE), encoding="utf-8"
    )
    bad = review_of(run_of(own, source=HOSTILE + "x" * 400))
    (place / "hostile.html").write_text(as_html(bad, made=MADE), encoding="utf-8")
    return place


def test_the_page_can_be_read_on_a_phone(opened, folder):
    with shown(opened, folder / "good.html", "phone", scripts=True) as page:
        check_layout(page)
        assert page.title() == "Privacy review: eps 2 at delta 1e-05"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["good", "hostile"])
@pytest.mark.parametrize("view", VIEWS)
def test_every_view_can_be_read(opened, folder, name, view):
    with shown(opened, folder / f"{name}.html", view) as page:
        check_layout(page)
        assert page.evaluate("document.scripts.length") == 0


@pytest.mark.slow
def test_paper_has_the_page_in_the_colours_of_paper(opened, folder):
    with shown(opened, folder / "good.html", "night") as page:
        page.emulate_media(media="print")
        page.set_viewport_size({"width": 680, "height": 960})
        check_layout(page)
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert not page.is_visible("nav")
        assert 3 <= page.pdf(format="A4").count(b"/Type /Page\n") <= 10


@pytest.mark.slow
def test_the_test_of_layouts_can_fail(opened, tmp_path):
    path = tmp_path / "bad.html"
    path.write_text(
        "<body style='background:#fff'><p style='color:#999'>faint</p><div style='width:3000px'>wide</div>"
        "<svg viewBox='0 0 900 90' width='90'><text x='-50' y='20'>cut</text></svg>"
        "<img src='http://127.0.0.1:9/x.png'></body>"
    )
    with shown(opened, path, "phone") as page:
        for check in (OVERFLOWING, FAINT, SMALL, CUT):
            assert page.evaluate(check), check
        assert page.faults
