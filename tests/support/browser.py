"""Pages in a real browser, where there is one: the Chromium of the system, driven by Playwright.

Without either the tests are skipped, and say why. DPMECH_BROWSER names another executable; DPMECH_PICTURES a
folder that pictures are kept in.
"""

import contextlib
import os
import pathlib
import shutil

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
# Width, height, colours: a desk, a phone, a desk at night.
VIEWS = {"desk": (1280, 900, "light"), "phone": (360, 780, "light"), "night": (1280, 900, "dark")}


@contextlib.contextmanager
def browser():
    """A browser, or no test."""
    playwright = pytest.importorskip("playwright.sync_api", reason="the extra `browser` is optional")
    found = os.environ.get("DPMECH_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("no Chromium on this machine")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield opened
        opened.close()


@contextlib.contextmanager
def shown(opened, path, view, *, scripts=True):
    """A file as somebody sees it; complaints, and requests to the network, are in `page.faults`."""
    width, height, colours = VIEWS[view]
    context = opened.new_context(
        viewport={"width": width, "height": height}, color_scheme=colours, java_script_enabled=scripts
    )
    page = context.new_page()
    page.faults = []
    page.on("console", lambda message: page.faults.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: page.faults.append(str(error)))
    page.on(
        "request",
        lambda request: None if request.url.startswith("file:") else page.faults.append(request.url),
    )
    page.goto(path.as_uri())
    yield page
    if folder := os.environ.get("DPMECH_PICTURES"):
        page.screenshot(path=pathlib.Path(folder) / f"{path.stem}-{view}.png", full_page=True)
    context.close()


# What leaves the window, and text with a contrast below 4.5 to what is behind it.
OVERFLOWING = """() => [...document.querySelectorAll("body *")].filter(one => {
    const box = one.getBoundingClientRect();
    return box.width > 0 && (box.right > innerWidth + 1 || box.left < -1);
}).map(one => one.outerHTML.slice(0, 120))"""
FAINT = """() => {
    const parts = text => text.match(/[\\d.]+/g).map(Number);
    const light = ([r, g, b]) => {
        const linear = v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
        const [x, y, z] = [r, g, b].map(v => linear(v / 255));
        return 0.2126 * x + 0.7152 * y + 0.0722 * z;
    };
    const behind = one => {
        for (let at = one; at; at = at.parentElement) {
            const found = parts(getComputedStyle(at).backgroundColor);
            if (found.length < 4 || found[3] === 1) return found;
        }
        return [255, 255, 255];
    };
    const faint = [];
    for (const one of document.querySelectorAll("body *")) {
        const own = [...one.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
        if (!own || !one.getClientRects().length) continue;
        const style = getComputedStyle(one);
        const pair = [light(parts(one instanceof SVGElement ? style.fill : style.color)), light(behind(one))];
        const contrast = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
        if (contrast < 4.5) faint.push([contrast, one.outerHTML.slice(0, 120)]);
    }
    return faint;
}"""
SMALL = """() => [...document.querySelectorAll("svg text")]
    .filter(one => one.getBoundingClientRect().height < 9).map(one => one.textContent)"""
CUT = """() => [...document.querySelectorAll("svg text")].filter(one => {
    const box = one.getBoundingClientRect(), all = one.ownerSVGElement.getBoundingClientRect();
    return box.left < all.left - 1 || box.right > all.right + 1
        || box.top < all.top - 1 || box.bottom > all.bottom + 1;
}).map(one => one.textContent)"""


def check_layout(page):
    """Nothing leaves the window or its drawing, and all text can be read."""
    assert page.faults == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    for found in (OVERFLOWING, FAINT, SMALL, CUT):
        assert page.evaluate(found) == []
