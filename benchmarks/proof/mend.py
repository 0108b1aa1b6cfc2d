"""What the mended package must show: the issue's numbered items, in its order."""

from __future__ import annotations

from . import mend_calls_items as calls
from . import mend_portable_items as outputs
from . import mend_python_items as pythons
from . import mend_wires_items as wires
from . import mend_world_items as worlds
from . import mend_wrap_items as wraps
from .foundation import fresh_clone
from .world import run_tests


def errors() -> tuple[str, bool]:
    """Item 10: one base class, in a World and over shared memory."""
    return run_tests(
        "tests/comm/test_base.py::test_one_class_is_caught_where_ranks_disagree_or_one_is_gone"
    )


def kernel_interrupts() -> tuple[str, bool]:
    """Item 11 with real signals, and in a kernel."""
    return run_tests("tests/comm/test_world.py")


ITEMS = {
    "1 wrapped twice": wraps.wrapped_twice,
    "2 two Comms of one group": wires.channels,
    "3 compositions": wraps.pairs,
    "4 a program that changes what it reaches": calls.changed,
    "5a posted operations": worlds.posted_operations,
    "5b the same between processes, 20 bytes and 10 MB": wires.order,
    "6 after a mismatch": wires.after_a_mismatch,
    "7 callers that say different things": wires.disagreement,
    "8 NaN": calls.nan,
    "9 a stopped rank": wires.stopped,
    "10 one class of errors": errors,
    "11a interrupts": worlds.interrupts,
    "11b interrupts, with signals and in a kernel": kernel_interrupts,
    "12a two hosts": pythons.two_hosts,
    "12b one sentence": calls.sentences,
    "13 nothing is left": pythons.killed,
    "14a wrong calls": calls.wrong_calls,
    "14b wrong calls of launch": wires.arguments,
    "15 outputs": outputs.tolerance,
    "16 other processors": outputs.portable,
    "17 other Pythons": pythons.versions,
    "18 installed": pythons.installed,
    "19 README and set-up": pythons.readme,
    "20 make test in a fresh clone": fresh_clone,
}
