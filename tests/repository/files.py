"""What belongs to the repository: the files that git tracks, or would track."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def repository(*patterns):
    """Paths relative to the root that match one of the glob `patterns` (all when there are none), in order."""
    out = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "--", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return sorted(path for path in map(Path, set(out.splitlines())) if (ROOT / path).is_file())
