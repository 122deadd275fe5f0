"""python docs/draw_layers.py draws the layers into architecture.md, from the contract and the code."""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
BLOCK = re.compile(r"<!-- layers -->\n.*?<!-- end of layers -->", re.DOTALL)


def picture() -> str:
    """The layers of the first contract.

    Raises:
        ValueError: if a module or package of dpmech stands in no layer.
    """
    settings = tomllib.loads(
        (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    )
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    lines, placed = [], set()
    for layer in layers:
        names = [
            name.strip().removeprefix("dpmech.") for name in layer.split("|")
        ]
        placed |= set(names)
        lines.append(" | ".join(names))
    package = ROOT / "dpmech"
    found = {path.stem for path in package.glob("*.py")} - {
        "__init__",
        "__main__",
    }
    found |= {path.parent.name for path in package.glob("*/__init__.py")}
    if found != placed:
        raise ValueError(f"in no layer, or not there: {sorted(found ^ placed)}")
    width = max(map(len, lines))
    return "\n".join(
        ["```text", *(line.center(width).rstrip() for line in lines), "```"]
    )


def page_with(drawn: str) -> str:
    """The page with this picture in place of its own."""
    text = PAGE.read_text(encoding="utf-8")
    return BLOCK.sub(f"<!-- layers -->\n{drawn}\n<!-- end of layers -->", text)


if __name__ == "__main__":
    PAGE.write_text(page_with(picture()), encoding="utf-8")
    sys.stdout.write(picture() + "\n")
