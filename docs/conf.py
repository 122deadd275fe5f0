"""Sphinx configuration."""

import pathlib
import sys
from importlib import metadata

sys.path.insert(
    0, str(pathlib.Path(__file__).parent)
)  # mathml, command_pages, and others

project = "dpmech"
author = "the dpmech authors"
copyright = "the dpmech authors"
release = metadata.version("dpmech")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinxcontrib.bibtex",
    "mathml",
    "command_pages",
    "cross_references",
    "whole_numbers",
]
bibtex_bibfiles = ["references.bib"]
bibtex_reference_style = "author_year"
myst_enable_extensions = ["dollarmath", "amsmath", "deflist"]
myst_heading_anchors = 4
exclude_patterns = ["_build", "examples", "templates"]
html_theme = "furo"
html_title = f"dpmech {release}"
html_static_path = ["static"]
html_css_files = ["dpmech.css"]
html_math_renderer = "mathml"  # written when built: no page needs the network
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autosummary_generate = True
autosummary_imported_members = True
templates_path = ["templates"]
# What is copied are the commands, without prompts and without what they print.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_line_continuation_character = "\\"
nitpicky = True
