"""`make release`: what students get has no solutions in it, and all that they need."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from course.release import main, readme
from tests.repository.files import ROOT, repository
from tests.repository.test_text import dead_paths

NAME = "03_topology"
NOTEBOOK = f"exercises/{NAME}/{NAME}.ipynb"
RIGHT = "wire_seconds"
METADATA = (
    "import sys; from setuptools import build_meta;"
    "print(build_meta.prepare_metadata_for_build_editable(sys.argv[1]))"
)


@pytest.fixture(scope="module")
def students(tmp_path_factory):
    folder = tmp_path_factory.mktemp("students")
    assert main([str(folder)]) == 0
    return folder


def files(folder):
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def test_only_what_students_need_goes_out(students):
    found = files(students)
    tops = {name.partition("/")[0] for name in found}
    assert tops == {
        "course",
        *("CITATION.cff", "LICENSE", "LICENSES.md", "LICENSE-TEXTS", "Makefile", "README.md"),
        *("constraints.txt", "environment.yml", ".gitignore"),
        *("Dockerfile", ".dockerignore", ".devcontainer", ".binder"),
        *("docs", "examples", "exercises", "minicheck", "minidist", "notebooks", "pyproject.toml"),
    }
    assert not any("__pycache__" in name or name.endswith((".pyc", ".db")) for name in found)
    of_course = [name for name in found if name.startswith("course/")]
    wanted = repository("course/*/figures/*.svg", "course/install.py", "course/python.sh")
    assert of_course == [path.as_posix() for path in wanted]
    assert len(of_course) > 20
    assert sum(name.startswith("minicheck/oracles/") for name in found) > 10


def test_no_solution_goes_out(students):
    """No cell of the solved notebooks that is another than its stub stands in any notebook or file of questions."""
    paths = [*students.rglob("*.ipynb"), *students.glob("minicheck/questions/*.json")]
    out = "".join(map(source, [cell for path in paths for cell in cells(path)]))
    solutions = solved_cells()
    assert len(solutions) > 100
    assert [text for text in solutions if text in out] == []


def cells(path):
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def source(cell):
    return "".join(cell["source"])


def solved_cells():
    found = [cell for path in ROOT.glob("solutions/*/*.ipynb") for cell in cells(path)]
    return [source(c) for c in found if c["metadata"].get("nbgrader", {}).get("solution")]


def test_its_readme_speaks_of_what_is_there(students):
    text = (students / "README.md").read_text(encoding="utf-8")
    assert "## Start" in text
    for absent in ("## For teachers", "## Contributing", "solutions/", "<!--"):
        assert absent not in text
    there = set(files(students))
    there |= {name.rpartition("/")[0] for name in there}

    def exists(path):
        names = (path.rstrip("/"), f"{path}.py")
        return "*" in path or any(name in there for name in names)

    assert dead_paths(text, exists) == []


@pytest.mark.parametrize("mark", ["<!-- not for students -->", "<!-- for all -->"])
def test_a_readme_whose_marks_are_no_pairs_is_noticed(mark):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for spoiled in (text.replace(mark, "", 1), text.replace(mark, "")):
        with pytest.raises(ValueError, match="its marks are"):
            readme(spoiled)


def test_there_exercises_are_checked(students, tmp_path):
    """With one solution pasted, its points are earned; nothing is imported from here."""
    folder = tmp_path / "copy"
    shutil.copytree(students, folder)
    notebook = json.loads((folder / NOTEBOOK).read_text(encoding="utf-8"))
    solved = json.loads((ROOT / "solutions" / NAME / f"{NAME}.ipynb").read_text(encoding="utf-8"))
    [solution] = [c["source"] for c in solved["cells"] if grade_id(c) == RIGHT]
    for cell in notebook["cells"]:
        if grade_id(cell) == RIGHT:
            cell["source"] = solution
    (folder / NOTEBOOK).write_text(json.dumps(notebook), encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "-m", "minicheck", NOTEBOOK],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
    )
    table, by_hand = run.stdout.split("\n\n")
    assert by_hand == "cables is graded by hand, with up to 2 points more.\n"
    lines = {line.split()[0]: line.split(maxsplit=2)[1:] for line in table.splitlines()}
    assert run.returncode == 1 and len(lines) == 9, run.stderr
    assert lines.pop(RIGHT) == ["2/2", "right"]
    assert lines.pop("all") == ["2/15"]
    assert all(points.startswith("0/") and "yet" in words for points, words in lines.values())


def grade_id(cell):
    return cell["metadata"].get("nbgrader", {}).get("grade_id")


def test_there_it_can_be_installed(students, tmp_path):
    """What pip asks of the folder before it installs it, and what `make lab` would do."""
    folder = tmp_path / "copy"
    shutil.copytree(students, folder)
    done = subprocess.run(
        [sys.executable, "-c", METADATA, str(tmp_path)], cwd=folder, capture_output=True, text=True
    )
    [made] = tmp_path.glob("*.dist-info")
    assert "minicheck.__main__:main" in (made / "entry_points.txt").read_text(), done.stderr
    plan = subprocess.run(["make", "-n", "lab"], cwd=folder, capture_output=True, text=True)
    assert plan.returncode == 0 and "jupyter lab" in plan.stdout
    assert 'course/install.py ".venv" "course"' in plan.stdout.replace('"$python" ', "")


@pytest.mark.parametrize("spoil", ["stub", "added", "run"])
def test_an_exercise_that_somebody_worked_in_does_not_go_out(students, tmp_path, capsys, spoil):
    root = tmp_path / "root"
    shutil.copytree(students, root)
    notebook = json.loads((root / NOTEBOOK).read_text(encoding="utf-8"))
    [stub] = [cell for cell in notebook["cells"] if grade_id(cell) == RIGHT]
    if spoil == "stub":
        stub["source"] = ["the answer"]
    elif spoil == "added":
        notebook["cells"].append({"id": "1234", "cell_type": "code", "metadata": {}, "source": []})
    else:
        stub["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "the answer"}]
    (root / NOTEBOOK).write_text(json.dumps(notebook), encoding="utf-8")
    assert main(["--root", str(root), str(tmp_path / "out")]) == 1
    assert NAME in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_that_holds_something_is_left_alone(tmp_path, capsys):
    (tmp_path / "mine").write_text("")
    assert main([str(tmp_path)]) == 1
    assert "is not empty" in capsys.readouterr().err
    assert files(tmp_path) == ["mine"]


def test_make_release_wants_a_folder():
    done = subprocess.run(["make", "release"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode and "make release DIR=" in done.stderr
