"""A Sphinx extension: no line ends within 1e-05 or 2 %, and no cell of a table either."""

import re

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

_NUMBER = re.compile(r"(\d[\d.,]*(?:e-\d+| %))")
_VERBATIM = (
    nodes.literal,
    nodes.literal_block,
    nodes.math,
    nodes.math_block,
    nodes.raw,
    nodes.title,
)


class WholeNumbers(SphinxPostTransform):
    """Negative exponents and per cent become boxes of class `number`, which the style keeps on a line."""

    default_priority = 900
    formats = ("html",)

    def run(self, **_: object) -> None:
        """All text that is shown as prose."""
        for text in list(self.document.findall(nodes.Text)):
            if not _NUMBER.search(text) or self._is_verbatim(text):
                continue
            parts = _NUMBER.split(text.astext())
            boxes: list[nodes.Node] = [
                nodes.inline(part, part, classes=["number"])
                if place % 2
                else nodes.Text(part)
                for place, part in enumerate(parts)
                if part
            ]
            text.parent.replace(text, boxes)

    @staticmethod
    def _is_verbatim(node: nodes.Node) -> bool:
        above = node.parent
        while above is not None:
            if isinstance(above, _VERBATIM):
                return True
            above = above.parent
        return False


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the transform."""
    app.add_post_transform(WholeNumbers)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
