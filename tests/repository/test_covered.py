"""What the course must say, sentence by sentence, is said: course/covered.toml names the cell of each by its words."""

import json
import re
import tomllib
from functools import cache

import pytest

from course.links import Links
from tests.repository.files import ROOT

TABLE = tomllib.loads((ROOT / "course/covered.toml").read_text(encoding="utf-8"))["row"]
LESSONS = Links(ROOT).lessons


@cache
def cells(lesson):
    """The texts of a lesson's cells: sources, and what their outputs say."""
    path = ROOT / "notebooks" / f"{LESSONS[lesson].folder}.ipynb"
    found = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        texts = ["".join(cell["source"])]
        for output in cell.get("outputs", []):
            texts.append("".join(output.get("text", "")))
            texts.append("".join(output.get("data", {}).get("text/plain", "")))
        found.append(plain("\n".join(texts)))
    return found


def plain(text):
    """Words without the marks of Markdown, the addresses of links and the ends of lines."""
    text = re.sub(r"\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\([^)]*\)", r"\1", text)
    return " ".join(re.sub(r"[*`]|^\s*#\s", "", text, flags=re.MULTILINE).split())


def fault(row):
    """What is wrong with a row, or None."""
    if set(row) != {"topic", "sentence", "lesson", "words"} or not all(row.values()):
        return "it has not a topic, a sentence, a lesson and words"
    if row["lesson"] not in LESSONS:
        return f"no lesson is called {row['lesson']}"
    if len(row["words"]) < 12:
        return "so few words may stand anywhere"
    if not any(plain(row["words"]) in text for text in cells(row["lesson"])):
        return f"no cell of {row['lesson']} says {row['words']!r}"
    return None


def test_every_sentence_has_its_cell(figure):
    figure(f"{len(TABLE)} sentences, in {len({row['lesson'] for row in TABLE})} lessons")
    faults = [f"{row.get('sentence')}: {fault(row)}" for row in TABLE if fault(row)]
    assert faults == []
    sentences = [row["sentence"] for row in TABLE]
    assert len(sentences) == len(set(sentences))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"words": "what no cell of any lesson has ever said"}, "no cell of"),
        ({"lesson": "nowhere"}, "no lesson is called nowhere"),
        ({"words": "a rank"}, "so few words"),
        ({"topic": ""}, "has not a topic"),
    ],
)
def test_a_fault_is_found(change, said):
    assert said in fault({**TABLE[0], **change})
