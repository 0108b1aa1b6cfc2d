"""A fresh Debian root, made by debootstrap, in which commands run as they would on a machine that holds nothing else.

Each command runs with mounts and processes of its own, which the kernel takes away when it ends: nothing is left to be
unmounted, and nothing of it is seen outside. Needed are root and debootstrap.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

SUITE = "bookworm"
# Under `pip config list`, a file or folder of this machine.
PLACE = re.compile(r"(file://)?(/[^\s'\\]+)")
CLEAN = {
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
}


def missing():
    """Why there can be no Debian root here, or an empty text."""
    if os.geteuid():
        return "a Debian root is made by root only"
    if not shutil.which("debootstrap"):
        return "debootstrap is not installed"
    mounts = ["unshare", "--mount", "--pid", "--fork", "true"]
    if subprocess.run(mounts, capture_output=True).returncode:
        return "this machine allows no mounts of one's own"
    return ""


@cache
def pip_settings():
    """How pip is told of its index on this machine, as a pip.conf, and the files and folders that this names."""
    told = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"],
        env={name: value for name, value in os.environ.items() if not name.startswith("PIP_")},
        text=True,
        capture_output=True,
        check=True,
    ).stdout
    settings = dict(re.findall(r"^\w+\.([\w-]+)='(.*)'$", told, re.MULTILINE))
    found = [match for value in settings.values() for match in PLACE.findall(value)]
    # An index in a folder links to the files beside it.
    places = {os.path.dirname(path.rstrip("/")) if scheme else path for scheme, path in found}
    # pip config list prints the lines of a value with \n between them.
    lines = [f"{name} = {value.replace(chr(92) + 'n', ' ')}" for name, value in settings.items()]
    return "\n".join(["[global]", *lines, ""]), sorted(filter(os.path.exists, places))


class Root:
    """The folder that is / for the commands that are run in it."""

    def __init__(self, folder: Path):
        self.folder = folder
        text, places = pip_settings()
        self._bound = [Path(place) for place in places if os.path.isdir(place)]
        if not (folder / "usr").exists():
            made = ["debootstrap", "--variant=minbase", SUITE, str(folder)]
            done = subprocess.run(made, text=True, capture_output=True)
            assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        for place in filter(os.path.isfile, places):
            # Not where it is here: a package may own, and renew, the file of that name.
            (folder / "srv" / place.replace("/", "_")).write_bytes(Path(place).read_bytes())
            text = text.replace(place, f"/srv/{place.replace('/', '_')}")
        (folder / "etc" / "pip.conf").write_text(text)
        for name in ("resolv.conf", "hosts"):
            shutil.copy(Path("/etc") / name, folder / "etc" / name)
        for place in self._bound:
            (folder / place.relative_to("/")).mkdir(parents=True, exist_ok=True)

    def copy(self, folder: Path) -> "Root":
        subprocess.run(["cp", "-a", str(self.folder), str(folder)], check=True)
        return Root(folder)

    def words(self, command, user="root", cwd="/", env=None, terminal=False):
        """What runs `command`, a list of words, in this root; on a terminal, as the one that Ctrl-C reaches."""
        root = shlex.quote(str(self.folder))
        mounts = [
            f"mount -t proc proc {root}/proc",
            f"mount --rbind /sys {root}/sys",
            f"mount --bind /dev {root}/dev",
            f"mount -t tmpfs shm {root}/dev/shm",
            f"mount -t devpts devpts {root}/dev/pts 2>/dev/null || mount --bind /dev/pts {root}/dev/pts",
        ]
        for place in self._bound:
            mounts.append(f"mount --bind -o ro {place} {root}{place}")
        home = "/root" if user == "root" else f"/home/{user}"
        clean = CLEAN | {"HOME": home, "USER": user, "LOGNAME": user} | (env or {})
        inner = f"cd {shlex.quote(cwd)} && exec {shlex.join(command)}"
        entered = [
            *(["setsid", "--ctty", "--wait"] if terminal else []),
            *("chroot", f"--userspec={user}:{user}", str(self.folder), "env", "-i"),
            *(f"{name}={value}" for name, value in clean.items()),
            *("sh", "-c", inner),
        ]
        script = " && ".join(
            [*(f"{{ {mount}; }}" for mount in mounts), f"exec {shlex.join(entered)}"]
        )
        return [
            *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"),
            *("sh", "-c", script),
        ]

    def run(self, line, **how):
        """What a line of shell prints; AssertionError with its end if it fails."""
        done = subprocess.run(
            self.words(["sh", "-c", line], **how),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout[-4000:]}"
        return done.stdout

    def remove(self):
        subprocess.run(["rm", "-rf", "--one-file-system", str(self.folder)], check=True)
