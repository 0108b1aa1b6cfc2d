"""A course of one lesson, for the tests of the machinery."""

import shutil

from tests.repository.files import ROOT

LESSON = """\
# %% [markdown]
# # A lesson

# %%
print("a", end="")
print("b", 1 / 3)
[x**2 for x in range(3)]

# %%
import matplotlib.pyplot as plt
plt.plot([1, 2, 3])
plt.show()

# %% tags=["raises-exception"]
import json
json.loads("{")

# %% tags=["maintainer"]
assert json.loads("{}") == {}

# %% tags=["answer"]
3
"""

ASSIGNMENT = '''\
# %% [markdown] nbgrader={"grade_id": "spec"}
# # Exercises

# %% nbgrader={"grade_id": "add", "solution": true}
def add(a, b):
    """a + b."""
    ### BEGIN SOLUTION
    return a + b
    ### END SOLUTION

# %% nbgrader={"grade_id": "add_test", "points": 2}
assert add(1, 2) == 3
### BEGIN HIDDEN TESTS
assert add(-1, 2) == 1
### END HIDDEN TESTS

# %% nbgrader={"grade_id": "double", "solution": true}
def double(a):
    """2a."""
    ### BEGIN SOLUTION
    return a + a
    ### END SOLUTION

# %% nbgrader={"grade_id": "double_test", "points": 3}
assert double(2) == 4
'''

ROW = """\
[[lesson]]
number = "{number}"
name = "{name}"
title = "A lesson"
builds = "nothing"
needs = []
reading = 5
exercises = 25
files = ["course/lessons.toml"]
examples = []

"""


def course(root, lesson=LESSON, assignment=ASSIGNMENT):
    """A repository in miniature under `root`: one lesson, and nbgrader's configuration of the real one."""
    folder = root / "course" / "07_sample"
    folder.mkdir(parents=True)
    (folder / "lesson.py").write_text(lesson)
    (folder / "assignment.py").write_text(assignment)
    (root / "course" / "lessons.toml").write_text(ROW.format(number="07", name="sample"))
    shutil.copy(ROOT / "nbgrader_config.py", root)
    return root
