"""Terms: what is bold in a lesson has its entry in the glossary, an entry has its lesson and its Chinese.

Bold is for a term where it is explained, for words that lead into a paragraph and end with a punctuation mark, and for a
question. Emphasis is italic.
"""

import re
from functools import cache

import pytest

from course.links import GLOSSARY
from tests.repository.files import ROOT

BOLD = re.compile(r"\*\*(.+?)\*\*", re.DOTALL)
ENTRY = re.compile(r"^## +(.+?) *\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
WHERE = re.compile(r"→ \[\d\d .*\]\(\.\./notebooks/(\d\d_\w+)\.ipynb\)")
CHINESE = re.compile(r"\n中文：\S.*\n\n")
LESSONS = sorted(ROOT.glob("course/[0-9]*_*/lesson.py"))


def plain(words):
    """Words in small letters and without endings: `Micro-batches` and `micro-batch` become the same."""
    found = re.findall(r"\w+", words.lower())
    return " ".join(re.sub(r"(?<=\w{3})(ing|ism|ed|es|e|(?<!s)s)$", "", word) for word in found)


def prose(source):
    """The text cells of a lesson, without the # at the beginning of each line."""
    cells = re.split(r"^# %%", source, flags=re.MULTILINE)
    texts = [cell.partition("\n")[2] for cell in cells if cell.startswith(" [markdown]")]
    return "\n".join(re.sub(r"^# ?", "", text, flags=re.MULTILINE) for text in texts)


def leads(phrase, rest):
    """Whether a bold phrase leads into what follows, or is (the first part of) a question."""
    asks = phrase[0].isupper() and len(phrase.split()) > 4 and re.match(r"[^.!:\n]*\?", rest)
    return phrase[-1] in ".?:!,;…" or bool(asks)


def strays(text, terms):
    """The bold phrases of `text` that are none of the `terms`, lead into nothing and ask nothing."""
    known = {plain(term) for term in terms}
    for match in BOLD.finditer(text):
        phrase = match[1].strip()
        linked = "](term:" in phrase
        if not linked and not leads(phrase, text[match.end() :]) and plain(phrase) not in known:
            yield phrase


def explained(term, text):
    """Whether a lesson links a term of the glossary, or has it in bold or in a heading."""
    bold = {plain(match[1]) for match in BOLD.finditer(text)}
    headings = [plain(line) for line in re.findall(r"^#+ (.+)$", text, re.MULTILINE)]
    linked = f"](term:{term.lower().replace(' ', '-')})" in text
    return (
        linked or plain(term) in bold or any(f" {plain(term)} " in f" {line} " for line in headings)
    )


def missing(term, entry, lessons):
    """What an entry of the glossary lacks, or None. `lessons` has the text of each lesson."""
    where = WHERE.search(entry)
    if not where or not explained(term, lessons.get(where[1], "")):
        return "no lesson that explains it"
    if not CHINESE.match(entry):
        return "no Chinese"
    return None


@cache
def glossary():
    return dict(ENTRY.findall((ROOT / GLOSSARY).read_text(encoding="utf-8")))


@cache
def texts():
    return {path.parent.name: prose(path.read_text(encoding="utf-8")) for path in LESSONS}


@pytest.mark.parametrize("name", [path.parent.name for path in LESSONS])
def test_what_is_bold_is_a_term(name):
    assert list(strays(texts()[name], glossary())) == []


@pytest.mark.parametrize("name", [path.parent.name for path in LESSONS])
def test_an_entry_has_a_lesson_and_chinese(name):
    own = {term: entry for term, entry in glossary().items() if f"/{name}.ipynb" in entry}
    faults = {term: missing(term, entry, texts()) for term, entry in own.items()}
    assert {term: fault for term, fault in faults.items() if fault} == {}


def test_every_entry_names_a_lesson(figure):
    named = {term: WHERE.search(entry) for term, entry in glossary().items()}
    assert [term for term, where in named.items() if not where or where[1] not in texts()] == []
    figure(f"{len(named)} terms in English and Chinese")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a **ring** of ranks", ["ring"]),
        ("**Rings**, twice", ["Rings"]),
        ("to\n**do it\nnow** or never", ["do it\nnow"]),
        ("**Pushes and pulls** are few? No.", ["Pushes and pulls"]),
        (
            "**What a worker does with its gradients** is this. Why?",
            ["What a worker does with its gradients"],
        ),
        ("**Micro-batches**, **micro-batching** and a **micro batch**", []),
        ("**[Rings](term:push)** and [rings](term:push)", []),
        ("**When not.** If *n* is odd. **With two ranks,** or one, **which is it?**", []),
        ("**How many bytes does a rank send**, with n = 4,096?", []),
    ],
)
def test_a_bold_phrase_without_an_entry_is_found(text, found):
    assert list(strays(text, ["micro-batch", "push"])) == found


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        ("\n中文：推送\n\nWhat it is. → [08 Server](../notebooks/08_server.ipynb)\n", None),
        ("\n中文：推送\n\nWhat it is.\n", "no lesson that explains it"),
        (
            "\n中文：推送\n\nWhat. → [09 Bits](../notebooks/09_bits.ipynb)\n",
            "no lesson that explains it",
        ),
        (
            "\n中文：推送\n\nWhat. → [10 Old](../notebooks/10_old.ipynb)\n",
            "no lesson that explains it",
        ),
        ("\nWhat it is. → [08 Server](../notebooks/08_server.ipynb)\n", "no Chinese"),
        ("\n中文：\n\nWhat it is. → [08 Server](../notebooks/08_server.ipynb)\n", "no Chinese"),
    ],
)
def test_what_an_entry_lacks_is_found(entry, fault):
    lessons = {"08_server": "a [message](term:push)", "09_bits": "to push it"}
    assert missing("push", entry, lessons) == fault
    assert explained("push", "it **pushes**") and explained("push", "## To push")
    assert not explained("push", "it pushes **pushers**")
