"""Notebooks for Google Colab, which run without a clone of the repository, and the wheel that they install.

    notebook(text, path, …)    a lesson or an assignment whose first cell installs the package
    wheel(folder)              the package, built from the repository into `folder`; nothing is fetched for it
    Address                    where the repository is on GitHub, and with it its site and what opens its notebooks

Colab opens notebooks from a branch of a GitHub repository. The workflow that publishes the site pushes them to one,
called `colab`; the wheel is on the site.

    a schematic        stands in the notebook itself, as a data: URI
    any other link     leads to the page of the site that shows what it means
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

ROOT = Path(__file__).resolve().parents[1]
BRANCH = "colab"
PACKAGES = ("minidist", "minicheck")
BUILD = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"
LINK = re.compile(r"(\]\(|<img src=\")([^)\s\"]+)([)\"])")
PICTURES = {".svg": "image/svg+xml", ".png": "image/png", ".jpg": "image/jpeg"}
INSTALL = """\
# Colab has no clone of the course: this installs its package, which takes a minute or two.
%pip install -q "minidist[course] @ {wheel}"
"""


@dataclass(frozen=True)
class Address:
    """Where the repository is on GitHub.

    site: the address of its web site, which ends with a slash.
    """

    owner: str
    name: str
    site: str

    @classmethod
    def of(cls, words: str, site: str = "") -> Address:
        """The address that OWNER/NAME means; GitHub Pages gives it its site, unless another one is named."""
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", words):
            raise ValueError(f"an address has the form OWNER/NAME, and not that of {words!r}")
        owner, name = words.split("/")
        pages = f"https://{owner.lower()}.github.io/"
        if name.lower() != f"{owner}.github.io".lower():
            pages += f"{name}/"
        return cls(owner, name, f"{site.rstrip('/')}/" if site else pages)

    def colab(self, file: str) -> str:
        return f"https://colab.research.google.com/github/{self.owner}/{self.name}/blob/{BRANCH}/{quote(file)}"

    def binder(self, path: str) -> str:
        """JupyterLab on mybinder.org, with the file `path` of the repository open."""
        place = quote(path, safe="")
        return f"https://mybinder.org/v2/gh/{self.owner}/{self.name}/HEAD?labpath={place}"

    def codespaces(self) -> str:
        return f"https://codespaces.new/{self.owner}/{self.name}?quickstart=1"


def origin(root: Path) -> str:
    """OWNER/NAME of the clone in `root`, if git's remote is on GitHub; else nothing."""
    asked = subprocess.run(
        ["git", "-C", str(root), "remote", "get-url", "origin"], capture_output=True, text=True
    )
    found = re.search(r"github\.com[:/]([\w.-]+/[\w.-]+?)(\.git)?/?$", asked.stdout.strip())
    return found[1] if found else ""


def file_name(path: Path, root: Path) -> str:
    """What the notebook in `path` is called for Colab: a lesson's own name, or that of an assignment."""
    is_lesson = path.relative_to(root).parts[0] == "notebooks"
    return f"{path.stem}.ipynb" if is_lesson else f"{path.stem}_exercises.ipynb"


def notebook(text: str, path: Path, root: Path, site: str, wheel_name: str) -> str:
    """The notebook `text` of the file `path`, as Colab runs it."""
    nb = json.loads(text)
    for cell in nb["cells"]:
        if cell["cell_type"] == "markdown":
            source = "".join(cell["source"])
            cell["source"] = LINK.sub(
                lambda m: m[1] + target(m[2], path, root, site) + m[3], source
            )
    install = {
        "cell_type": "code",
        "execution_count": None,
        "id": "install",
        "metadata": {},
        "outputs": [],
        "source": INSTALL.format(wheel=f"{site}{wheel_name}").rstrip("\n"),
    }
    nb["cells"].insert(0, install)
    return json.dumps(nb, ensure_ascii=False, indent=1) + "\n"


def target(link: str, path: Path, root: Path, site: str) -> str:
    """Where a link in the notebook `path` leads from Colab."""
    if re.match(r"\w+:", link):
        return link
    address, hash_sign, heading = link.partition("#")
    file = (path.parent / address).resolve() if address else path
    kind = PICTURES.get(file.suffix)
    if kind:
        return f"data:{kind};base64,{base64.b64encode(file.read_bytes()).decode()}"
    name = file.relative_to(root)
    page = name.with_suffix(".html") if name.suffix in (".ipynb", ".md") else f"{name}.html"
    return f"{site}{page}{hash_sign}{heading.lower()}"


def wheel(folder: Path) -> str:
    """Build the wheel of this repository into `folder`. Returns its name."""
    with tempfile.TemporaryDirectory() as made:
        copy = Path(made) / "source"
        left = shutil.ignore_patterns("__pycache__")
        for package in PACKAGES:
            shutil.copytree(ROOT / package, copy / package, ignore=left)
        for file in [ROOT / "pyproject.toml", ROOT / "README.md", *ROOT.glob("LICENSE*")]:
            shutil.copy(file, copy)
        folder.mkdir(parents=True, exist_ok=True)
        built = subprocess.run(
            [sys.executable, "-c", BUILD, str(folder)], cwd=copy, capture_output=True, text=True
        )
    if built.returncode:
        raise RuntimeError(f"the wheel cannot be built:\n{built.stderr}")
    return built.stdout.splitlines()[-1]
