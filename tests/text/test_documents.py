"""Where texts come from, and what cannot be one."""

import pytest

from minidist.text import documents


def test_the_reference():
    found = documents()
    assert len(found) > 50 and found == documents() and any("for_stmt" in text for text in found)


def test_files_and_folders_by_name(tmp_path):
    for name, text in (("b.txt", "two"), ("a/z.py", "one, ü"), ("c.md", "")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert documents([tmp_path]) == ["one, ü", "two", ""]
    assert documents([tmp_path / "b.txt", tmp_path / "a"]) == ["two", "one, ü"]


def test_what_is_refused(tmp_path):
    (tmp_path / "image").write_bytes(b"ab\xff")
    with pytest.raises(ValueError, match="image is not a text in UTF-8: byte 2 is 0xff"):
        documents([tmp_path])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="0 files below"):
        documents([tmp_path / "empty"])
    (tmp_path / "image").write_text("")
    with pytest.raises(ValueError, match="1 documents with 0 characters"):
        documents([tmp_path / "image"])
    with pytest.raises(FileNotFoundError):
        documents([tmp_path / "nowhere"])
