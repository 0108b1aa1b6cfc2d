"""What a picture is made of, told while it is drawn."""

import pytest

from minidist.study.picture import Card


@pytest.fixture
def drawn(monkeypatch):
    """{"box" | "word" | "line": [(positional arguments, keyword arguments), …]} of what is drawn from now on."""
    calls = {"box": [], "word": [], "line": []}

    def watched(name, draw):
        def method(self, *args, **kwargs):
            calls[name].append((args, kwargs))
            return draw(self, *args, **kwargs)

        return method

    for name in calls:
        monkeypatch.setattr(Card, name, watched(name, getattr(Card, name)))
    return calls
