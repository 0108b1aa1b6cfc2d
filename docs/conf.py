"""How Sphinx makes the site: `make site` calls it on what course/website.py lays out.

A page asks for nothing that is not on the site. Formulas are MathML, which browsers set by themselves, so that no script
and no font comes with them. Where `study.reveal` folds an answer, a script sets a field for the reader's guess.
"""

from pathlib import Path

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

project = "minidist"
html_title = "minidist"
language = "en"
extensions = ["myst_nb"]
exclude_patterns = [".doctrees"]

nb_execution_mode = "off"
nb_merge_streams = True
nb_ipywidgets_js = {}
myst_enable_extensions = ["dollarmath", "html_image"]
myst_heading_anchors = 3

html_theme = "furo"
html_math_renderer = "mathml"
html_copy_source = False
html_show_sourcelink = False

GUESS = Path(__file__).parents[1] / "minidist" / "study" / "page" / "guess.js"


def write_math(translator, node):
    translator.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def write_display_math(translator, node):
    translator.body.append(tex2mathml(node.astext(), as_block=True))
    raise nodes.SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", (write_math, None), (write_display_math, None))
    if GUESS.exists():
        app.add_js_file(None, body=GUESS.read_text(encoding="utf-8"))
