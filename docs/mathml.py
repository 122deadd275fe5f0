"""A Sphinx extension: formulas become MathML when pages are built, and need no script of a network."""

import re

import latex2mathml.converter
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number
from sphinx.writers.html5 import HTML5Translator

# The converter knows no bars of larger size.
_NORM = re.compile(r"(?:\\[bB]ig[lr]?\s*)?\\\|")
_WIDE = 40  # characters of TeX
LOG = logging.getLogger(__name__)


def mathml(tex: str, *, display: bool) -> str:
    r"""One formula.

    Args:
        tex: what stands between dollars. Several lines (`\\` or `&`) are aligned.
        display: on a line of its own.

    Raises:
        ValueError: if some of it is no TeX that the converter knows.
    """
    if r"\\" in tex and r"\begin" not in tex:
        tex = rf"\begin{{split}}{tex}\end{{split}}"
    try:
        found = latex2mathml.converter.convert(
            _NORM.sub(r"\\Vert ", tex), display="block" if display else "inline"
        )
    except Exception as error:  # a dozen classes without a common base
        raise ValueError(f"no MathML for {tex!r}: {error!r}") from error
    if "\\" in found.replace("&#x0005C;", "") or ">&<" in found:
        raise ValueError(f"no MathML for all of {tex!r}")
    return found


def _written(node: nodes.Element, *, display: bool) -> str:
    try:
        return mathml(node.astext(), display=display)
    except ValueError as error:
        LOG.warning(str(error), location=node)
        return ""


def visit_math(translator: HTML5Translator, node: nodes.math) -> None:
    """Within a line; one that may be wider than a phone is a box that scrolls."""
    found = _written(node, display=False)
    wide = len(node.astext()) > _WIDE
    translator.body.append(
        f'<span class="wide-math">{found}</span>' if wide else found
    )
    raise nodes.SkipNode


def visit_displaymath(
    translator: HTML5Translator, node: nodes.math_block
) -> None:
    """On a line of its own, with a number where it has a label."""
    translator.body.append(translator.starttag(node, "div", CLASS="math"))
    if node.get("number"):
        number = get_node_equation_number(translator, node)
        translator.body.append(f'<span class="eqno">({number})</span>')
    translator.body.append(_written(node, display=True) + "</div>")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """What Sphinx calls."""
    app.add_html_math_renderer(
        "mathml", (visit_math, None), (visit_displaymath, None)
    )
    return {"parallel_read_safe": True, "parallel_write_safe": True}
