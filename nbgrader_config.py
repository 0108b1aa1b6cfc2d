"""nbgrader works on this repository as it is: run its commands in this folder.

nbgrader generate_assignment 02_messages      solutions/ -> exercises/, and the gradebook
nbgrader validate solutions/02_messages/02_messages.ipynb
nbgrader autograde 02_messages                submitted/STUDENT/02_messages/02_messages.ipynb -> autograded/
nbgrader generate_feedback 02_messages        -> feedback/
nbgrader export                               -> grades.csv
"""

import os
import sys

import nbgrader.preprocessors as p
from nbconvert.preprocessors import ClearMetadataPreprocessor

c = get_config()  # noqa: F821

# nbgrader calls `alembic` by name, which is found only in an activated environment.
os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", "")

c.CourseDirectory.course_id = "minidist"
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "exercises"

# A notebook is repaired where nbgrader opens it: cells without their marks, or there twice, would stop the whole class.
c.Autograde.exporter_class = "minicheck.regrade.Repair"

# What students hand in runs in a sandbox (docs/grading.md), in no kernel of the teacher's.
c.Autograde.autograde_preprocessors = [
    "minicheck.regrade.Regrade",
    p.IgnorePattern,
    ClearMetadataPreprocessor,
    p.LimitOutput,
    p.SaveAutoGrades,
    p.AssignLatePenalties,
    p.CheckCellMetadata,
]

c.ClearSolutions.code_stub = {"python": "# your code here\nraise NotImplementedError"}
c.ClearSolutions.text_stub = "*Your answer here.*"
