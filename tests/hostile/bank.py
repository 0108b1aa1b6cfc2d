"""All hostile submissions, by name."""

from tests.hostile import answers, files, kernel, limits, others, processes
from tests.hostile.submission import ALL, Hostile

BANK = {
    hostile.name: hostile
    for theme in (others, processes, limits, kernel, answers, files)
    for hostile in theme.BANK
}
# one of each class, each of a few seconds: they run in `make test`
TWELVE = (
    "gradebook",
    "graders_on_disk",
    "solutions_read",
    "abstract_socket",
    "environments_of_others",
    "all_killed",
    "left_in_a_session",
    "forged_answers",
    "memory_of_tensors",
    "runs_when_opened",
    "link_to_the_solution",
    "deep",
)
# Of these, what does not hinder the others, and is told by more than a mark
FOUR = ("gradebook", "graders_on_disk", "left_in_a_session", "abstract_socket")


def in_one(*names: str) -> Hostile:
    """One submission that makes all these attacks, each in a cell of its own, before it solves both exercises."""
    parts = [BANK[name] for name in names]
    cells = [cell for part in parts for cell in (*part.cells_before(), part.predict)]
    return Hostile(
        " and ".join(names), " ".join(part.tries for part in parts), before=cells, keeps=ALL
    )
