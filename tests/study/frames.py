"""Reading a page that a notebook shows in a frame."""

import json
import re
from html.parser import HTMLParser

LOADS = re.compile(
    r"https?:|\bfetch\(|XMLHttpRequest|WebSocket|\bimport\b|@import|url\(|sendBeacon|EventSource"
)


CHANGES = re.compile(r"\bDate\b|Math\.random|performance\.now|crypto")


class Reader(HTMLParser):
    """Every tag with its attributes, and the text inside of each script and style."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.inside = [], {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.tags:
            self.inside.setdefault(len(self.tags) - 1, []).append(data)

    def texts(self, tag):
        return [
            ("".join(self.inside.get(i, [])), attrs)
            for i, (name, attrs) in enumerate(self.tags)
            if name == tag
        ]


def run_of(page):
    return json.loads(
        next(text for text, attrs in Reader(page).texts("script") if attrs.get("id") == "run")
    )
