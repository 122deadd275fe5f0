"""Built pages of the documentation, as a phone and a desk show them, without a network.

`python -m tests.support.built_pages FOLDER [NAME ...]` keeps a picture of every page (or of those named, such
as `which` or `generated/commands/dpmech`) in both widths, and says what leaves the window.
"""

import contextlib
import html.parser
import pathlib
import sys
import urllib.parse

from tests.support.browser import browser

BUILT = pathlib.Path(__file__).parents[2] / "docs" / "_build" / "html"
WIDTHS = {"phone": (390, 844), "desk": (1280, 900)}
# What sticks out of the window, and is in no box within the page that scrolls by itself.
OUTSIDE = """() => [...document.querySelectorAll("article *")].filter(one => {
    const box = one.getBoundingClientRect();
    if (box.width === 0 || box.right <= innerWidth + 1) return false;
    for (let at = one; at.tagName !== "ARTICLE"; at = at.parentElement) {
        const kept = getComputedStyle(at).overflowX;
        const inside = at.getBoundingClientRect().right <= innerWidth + 1;
        if ((kept === "auto" || kept === "scroll") && inside) return false;
    }
    return true;
}).map(one => one.outerHTML.slice(0, 160))"""
SIDEWAYS = "document.documentElement.scrollWidth - innerWidth"


def pages(folder=BUILT):
    """Every page but copies of source code, by the path within the folder without its ending."""
    found = (path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.html"))
    return sorted(name for name in found if not name.startswith("_modules/"))


class _Links(html.parser.HTMLParser):
    """What a page links, and the places in it that can be linked."""

    def __init__(self, text):
        super().__init__()
        self.links, self.anchors = set(), {""}
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.anchors |= {given[key] for key in ("id", "name") if given.get(key)}
        if tag == "a" and given.get("href"):
            self.links.add(given["href"])


def broken_links(folder=BUILT):
    """Links of pages that lead to no page, or to no place of one, as `page: link`.

    Not those of copies of source code: their links back lead to the right page, but not always to the place.
    """
    read = {
        path.resolve(): _Links(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.html"))
    }
    found = []
    for name in pages(folder):
        page = (folder / f"{name}.html").resolve()
        one = read[page]
        for link in sorted(one.links):
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            to = (page.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else page
            if to in read:
                there = urllib.parse.unquote(parts.fragment) in read[to].anchors
            else:
                there = to.is_file() and not parts.fragment
            if not there:
                found.append(f"{name}: {link}")
    return found


@contextlib.contextmanager
def reader():
    """A window without a network; `reader.faults` has complaints, and whatever was asked of a network."""
    with browser() as opened:
        context = opened.new_context(offline=True)
        page = context.new_page()
        page.faults = []
        page.on(
            "request",
            lambda request: (
                None
                if request.url.startswith(("file:", "data:", "blob:"))
                else page.faults.append(request.url)
            ),
        )
        page.on("pageerror", lambda error: page.faults.append(str(error)))
        page.on("requestfailed", lambda request: page.faults.append(f"not there: {request.url}"))
        yield page
        context.close()


def faults(page, path, *, pictures=None, name=""):
    """What is wrong with a page, in words; empty where nothing is."""
    page.faults.clear()
    page.set_viewport_size(dict(zip(("width", "height"), WIDTHS["phone"], strict=True)))
    page.goto(path.as_uri())
    found = []
    for device, (width, height) in WIDTHS.items():
        page.set_viewport_size({"width": width, "height": height})
        if (wider := page.evaluate(SIDEWAYS)) > 0:
            found.append(f"{device}: scrolls sideways by {wider}")
        found += [f"{device}: outside {one}" for one in page.evaluate(OUTSIDE)]
        if pictures is not None:
            picture = pictures / f"{name.replace('/', '-')}-{device}.png"
            page.screenshot(path=picture, full_page=True, timeout=120_000)
    return found + list(page.faults)


def main():
    """Take pictures."""
    pictures, chosen = pathlib.Path(sys.argv[1]), sys.argv[2:] or pages()
    pictures.mkdir(parents=True, exist_ok=True)
    bad = 0
    with reader() as page:
        for name in chosen:
            found = faults(page, BUILT / f"{name}.html", pictures=pictures, name=name)
            bad += bool(found)
            for one in found:
                print(f"{name}: {one}")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
