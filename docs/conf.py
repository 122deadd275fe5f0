"""Sphinx configuration."""

from importlib import metadata

project = "dpmech"
author = "the dpmech authors"
copyright = "the dpmech authors"
release = metadata.version("dpmech")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinxcontrib.bibtex",
]
bibtex_bibfiles = ["references.bib"]
bibtex_reference_style = "author_year"
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 3
exclude_patterns = ["_build", "examples"]
html_theme = "furo"
html_title = f"dpmech {release}"
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_use_ivar = True  # attributes of a class stay in its description
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]  # annotations are not cross-referenced; links in prose are checked
