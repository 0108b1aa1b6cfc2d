"""What a check says of a wrong answer."""


class Wrong(AssertionError):
    """An answer is wrong; the message says how, in words that teach. A notebook shows the message alone."""

    def _render_traceback_(self) -> list[str]:
        return [f"Wrong: {self}"]
