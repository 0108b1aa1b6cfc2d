"""All hostile submissions, by name."""

from tests.hostile import answers, files, kernel, limits, others, processes

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
