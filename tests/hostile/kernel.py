"""Submissions that look for a way out through the kernel, or a way up to other rights."""

from tests.hostile.others import loot
from tests.hostile.submission import ALL, PREDICT, Hostile, inside

C = """\
import ctypes

c = ctypes.CDLL(None, use_errno=True)
assert boxed()
"""


def tried(name: str, tries: str, code: str) -> Hostile:
    """A cell that does what should be refused; whether it is, shows outside. Nothing of it costs points."""
    lines = [f"try:\n    {line}\nexcept OSError:\n    pass" for line in code.strip().splitlines()]
    return Hostile(name, tries, before="\n".join([C, *lines]), keeps=ALL)


BANK = [
    loot(
        "mounts",
        "It mounts the machine's disk, binds the root elsewhere, and unmounts what hides it.",
        C
        + """
import glob

os.makedirs("m", exist_ok=True)
c.unshare(0x10000000 | 0x20000)
for device in [*glob.glob("/dev/[vs]d*"), *glob.glob("/dev/nvme*"), "proc", "sysfs"]:
    for kind in (b"ext4", b"xfs", b"btrfs", b"proc", b"sysfs"):
        c.mount(device.encode(), b"m", kind, 0, None)
for line in open("/proc/self/mounts").read().splitlines()[::-1]:
    c.umount2(line.split()[1].encode(), 2)
c.mount(b"/", b"m", None, 4096 | 16384, None)
for root in ("/", "m", "m/1/root"):
    try:
        take(open(root + OUT["course"] + "/secret.json").read())
    except (OSError, ValueError):
        pass
""",
    ),
    loot(
        "namespaces",
        "It enters the namespaces of other processes, and makes its own, in which it is root.",
        C
        + """
for pid in {1, os.getppid(), OUT["victim"], OUT["marker"]}:
    for kind in ("user", "mnt", "pid", "net", "ipc"):
        try:
            c.setns(os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY), 0)
        except OSError:
            pass
    c.setns(c.syscall(434, pid, 0), 0x10000000 | 0x20000)
    fd = c.syscall(438, c.syscall(434, pid, 0), 3, 0)
for kind in (0x10000000, 0x20000, 0x40000000, 0x20000000, 0x02000000):
    c.unshare(kind)
for name, text in (("setgroups", "deny"), ("uid_map", "0 0 1"), ("gid_map", "0 0 1")):
    try:
        open("/proc/self/" + name, "w").write(text)
    except OSError:
        pass
take(open(OUT["course"] + "/secret.json").read())
""",
    ),
    loot(
        "chroot",
        "It leaves a root by a folder that was open when it got another one.",
        C
        + """
os.makedirs("jail", exist_ok=True)
above = os.open("/", os.O_RDONLY)
c.unshare(0x10000000)
os.chroot("jail")
os.fchdir(above)
for _ in range(64):
    os.chdir("..")
os.chroot(".")
take(open(OUT["course"] + "/secret.json").read())
""",
    ),
    loot(
        "file_handles",
        "It opens files by their numbers instead of their names.",
        C
        + """
import struct

mount = os.open("/etc", os.O_RDONLY)
for inode in [2, *range(1, 5000)]:
    handle = ctypes.create_string_buffer(struct.pack("IiQ", 8, 1, inode) + bytes(120))
    fd = c.open_by_handle_at(mount, handle, os.O_RDONLY)
    if fd >= 0:
        try:
            take(open(os.open(OUT["course"][1:] + "/secret.json", os.O_RDONLY, dir_fd=fd)).read())
        except (OSError, ValueError):
            pass
""",
    ),
    loot(
        "setuid",
        "It becomes root again by the programs that may do so.",
        """
import glob, subprocess

assert boxed()
for command in (
    ["su", "-c", f"cat {OUT['course']}/secret.json"],
    ["sudo", "-n", "cat", OUT["course"] + "/secret.json"],
    ["pkexec", "cat", OUT["course"] + "/secret.json"],
    ["mount", "--bind", "/", "."],
    ["newgrp", "root"],
    ["bwrap", "--bind", "/", "/", "cat", OUT["course"] + "/secret.json"],
    ["unshare", "-r", "cat", OUT["course"] + "/secret.json"],
    ["nsenter", "-t", "1", "-a", "cat", OUT["course"] + "/secret.json"],
    ["docker", "run", "-v", "/:/x", "alpine", "true"],
):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, stdin=subprocess.DEVNULL)
        take(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        pass
for act in (lambda: os.setuid(0), lambda: os.setresuid(0, 0, 0), lambda: os.setgroups([0]), lambda: os.setgid(0)):
    try:
        act()
    except OSError:
        pass
take(open(OUT["course"] + "/secret.json").read())
""",
    ),
    tried(
        "kernel_settings",
        "It writes to the settings of the kernel: the program for core dumps, the reboot key, control groups.",
        """
open("/proc/sys/kernel/core_pattern", "w").write("|/bin/false " + TOKEN)
open("/proc/sys/kernel/hostname", "w").write(TOKEN)
open("/proc/sysrq-trigger", "w").write("h")
open("/proc/sys/vm/drop_caches", "w").write("1")
open("/sys/fs/cgroup/release_agent", "w").write("/bin/false")
open("/sys/kernel/uevent_helper", "w").write("/bin/false")
open("/dev/kmsg", "w").write(TOKEN)
c.sethostname(TOKEN.encode(), len(TOKEN))
c.setdomainname(TOKEN.encode(), len(TOKEN))
""",
    ),
    tried(
        "devices",
        "It makes devices, and reads the machine's memory and disks.",
        """
os.mknod("disk", 0o60666, os.makedev(8, 0))
os.mknod("memory", 0o20666, os.makedev(1, 1))
open("disk", "rb").read(512)
open("memory", "rb").read(512)
open("/dev/mem", "rb").read(512)
open("/dev/vda", "rb").read(512)
open("/dev/kvm", "rb").read(1)
open("/dev/fuse", "r+b", buffering=0).read(1)
""",
    ),
    tried(
        "reboot",
        "It reboots, loads a module and another kernel, and swaps.",
        """
c.reboot(0)
c.syscall(175, b"", 0, b"")
c.syscall(246, 0, 0, None, 0)
c.swapoff(b"/swapfile")
c.acct(b"x")
c.syscall(154, 0, None, 0)
""",
    ),
    tried(
        "doors_of_the_kernel",
        "It opens the calls of the kernel in which most ways out were found: io_uring, userfaultfd, bpf, perf, keys.",
        """
c.syscall(425, 8, ctypes.create_string_buffer(256))
c.syscall(323, 0)
c.syscall(321, 0, ctypes.create_string_buffer(256), 128)
c.syscall(298, ctypes.create_string_buffer(256), 0, -1, -1, 0)
c.syscall(248, b"user", TOKEN.encode(), b"x", 1, -3)
c.syscall(250, 0, -3, 1)
c.syscall(424, 1, 9, None, 0)
c.syscall(272, 0x7E020000)
c.personality(0x0400000)
c.syscall(317, 1, 0, ctypes.create_string_buffer(16))
""",
    ),
    tried(
        "shared_with_others",
        "It leaves segments, semaphores and queues that live on without a process.",
        """
c.shmget(0x4D494E49, 1 << 20, 0o1666)
c.semget(0x4D494E49, 8, 0o1666)
c.msgget(0x4D494E49, 0o1666)
c.mq_open(b"/" + TOKEN.encode(), 0o102, 0o666, None)
open("/dev/shm/" + TOKEN, "w").write(TOKEN)
""",
    ),
    Hostile(
        "calls_when_examined",
        "The function writes, reads and starts by ways that Python does not announce.",
        shift=inside("""
import multiprocessing.util
target = OUT["course"] + "/" + TOKEN
for act in (
    lambda: torch._C._VariableFunctions.from_file(target, shared=True, size=64, dtype=torch.uint8).fill_(65),
    lambda: multiprocessing.util.spawnv_passfds(b"/bin/touch", [b"touch", target.encode()], []),
    lambda: torch.save(x, target),
    lambda: torch._C.PyTorchFileWriter(target),
    lambda: torch.ops.load_library("/tmp/x.so"),
):
    try:
        act()
    except BaseException:
        pass
"""),
        keeps=PREDICT,
    ),
    Hostile(
        "compiled_when_examined",
        "The function has PyTorch compile and run C++.",
        shift=inside("""
from torch.utils.cpp_extension import load_inline
load_inline("x", 'int f() { return system("touch " ' + '"' + OUT["course"] + '/compiled"); }', functions=["f"]).f()
"""),
        keeps=PREDICT,
    ),
]
