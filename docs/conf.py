"""How Sphinx makes the site: `make site` calls it on what course/website.py lays out.

A page asks for nothing that is not on the site. Formulas are MathML, which browsers set by themselves, so that no script
and no font comes with them. Where `study.reveal` folds an answer, a script sets a field for the reader's guess.
"""

import re
from pathlib import Path

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.writers.html5 import HTML5Translator

project = "minidist"
html_title = "minidist"
copyright = "2026, the minidist authors"
language = "en"
extensions = ["myst_nb"]
exclude_patterns = [".doctrees"]
templates_path = ["site/templates"]

nb_execution_mode = "off"
nb_merge_streams = True
nb_ipywidgets_js = {}
nb_code_prompt_show = "Show the code"
nb_code_prompt_hide = "Hide the code"
myst_enable_extensions = ["dollarmath", "html_image"]
myst_heading_anchors = 4

html_theme = "furo"
html_math_renderer = "mathml"
html_copy_source = False
html_show_sourcelink = False
html_use_index = False
html_static_path = ["site/static"]
html_css_files = ["site.css"]

# Opened from a disk, a page may not read another one, so that search shows titles alone.
SEARCH = 'DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = location.protocol !== "file:";'
GUESS = Path(__file__).parents[1] / "minidist" / "study" / "page" / "guess.js"


def write_math(translator, node):
    translator.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def write_display_math(translator, node):
    translator.body.append(tex2mathml(node.astext(), as_block=True))
    raise nodes.SkipNode


def visit_image(translator, node):
    """A schematic is as wide as the page allows, but on a telephone it keeps three quarters of its own width, and can be
    moved sideways in its box: letters of 13 pixels are then 10."""
    path = Path(translator.builder.srcdir, node["uri"])
    HTML5Translator.visit_image(translator, node)
    if path.suffix == ".svg" and path.is_file():
        width = float(re.search(r'<svg[^>]* width="([\d.]+)', path.read_text("utf-8"))[1])
        style = f"width: max(min({width:g}px, 100%), {0.75 * width:g}px)"
        written = translator.body.pop()
        translator.body.append(written.replace("<img ", f'<img style="{style}" ', 1))


def setup(app):
    app.add_node(nodes.image, override=True, html=(visit_image, HTML5Translator.depart_image))
    app.add_html_math_renderer("mathml", (write_math, None), (write_display_math, None))
    app.add_js_file(None, body=SEARCH)
    if GUESS.exists():
        app.add_js_file(None, body=GUESS.read_text(encoding="utf-8"))
