"""A fault planted in the package: a title, an edit, and the tests that must see it."""

from __future__ import annotations

import importlib
import pkgutil
from typing import NamedTuple

from tests.repository.files import ROOT


class Fault(NamedTuple):
    """title: what is wrong, in a few words.  file: of minidist/.  old, new: text that stands there once, and what takes
    its place.  tests: of tests/, as pytest is told them, separated by spaces."""

    title: str
    file: str
    old: str
    new: str
    tests: str

    def planted(self, text: str) -> str:
        """The file's text with the fault. ValueError unless `old` stands there exactly once."""
        times = text.count(self.old)
        if times != 1:
            raise ValueError(
                f"{self.file}: {self.title}: the text to be changed stands there {times} times, not once"
            )
        return text.replace(self.old, self.new)

    @property
    def path(self) -> str:
        """From the repository's root."""
        return f"minidist/{self.file}"

    @property
    def asked(self) -> list[str]:
        """The tests, from the repository's root."""
        return [f"tests/{test}" for test in self.tests.split()]


def techniques() -> dict[str, list[Fault]]:
    """All faults by technique, from the files beside this one that have FAULTS."""
    found: dict[str, list[Fault]] = {}
    for module in pkgutil.iter_modules([str(ROOT / "tests" / "mutants")], "tests.mutants."):
        if module.name.rpartition(".")[2].startswith(("test_", "__", "fault")):
            continue
        for technique, faults in importlib.import_module(module.name).FAULTS.items():
            if technique in found:
                raise ValueError(
                    f"{module.name} and another file both have the technique {technique!r}"
                )
            found[technique] = faults
    return found
