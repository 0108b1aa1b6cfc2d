"""System calls that the kernel refuses to a process, and to all that it starts: filters for seccomp(2), programs of classic
BPF.

`sandbox_filter` refuses a submission what leads out of its sandbox; `answer_filter` grants an answer what computing takes,
and nothing else: it opens files to read them, and there is no other process that it could start, end, or leave a sign to.

Numbers of system calls: asm/unistd.h of each architecture.
"""

from __future__ import annotations

import ctypes
import platform
import struct

# By machine: the audit architecture, and which of the numbers below are its own.
MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}

# Refused in a sandbox.
REFUSED = {
    # other processes: ptrace, process_vm_readv, process_vm_writev, pidfd_getfd, kcmp
    "processes": ((101, 310, 311, 438, 312), (117, 270, 271, 438, 272)),
    # mount, umount2, pivot_root, chroot, unshare, setns
    "namespaces": ((165, 166, 155, 161, 272, 308), (40, 39, 41, 51, 97, 268)),
    # open_tree, move_mount, fsopen, fsmount, mount_setattr, open_by_handle_at
    "file systems": ((428, 429, 430, 432, 442, 304), (428, 429, 430, 432, 442, 265)),
    # memory that no limit counts: memfd_create, memfd_secret, shmget, msgget, semget
    "memory": ((319, 447, 29, 68, 64), (279, 447, 194, 186, 190)),
    # large parts of the kernel that nothing here needs: userfaultfd, io_uring_setup, bpf, perf_event_open
    "machinery": ((323, 425, 321, 298), (282, 425, 280, 241)),
    # add_key, request_key, keyctl, personality, syslog
    "keys": ((248, 249, 250, 135, 103), (217, 218, 219, 92, 116)),
}
# Granted to an answer.
GRANTED = {
    # read, write, close, lseek, pread64, readv, writev, dup, dup2, dup3, pipe2
    "open files": ((0, 1, 3, 8, 17, 19, 20, 32, 33, 292, 293), (63, 64, 57, 62, 67, 65, 66, 23, 24, 59)),
    # stat, fstat, lstat, newfstatat, statx, access, faccessat, readlink, readlinkat, getcwd, getdents64
    "looks": ((4, 5, 6, 262, 332, 21, 269, 89, 267, 79, 217), (80, 79, 291, 48, 78, 17, 61)),
    # mmap, mprotect, munmap, brk, mremap, madvise
    "memory": ((9, 10, 11, 12, 25, 28), (222, 226, 215, 214, 216, 233)),
    # poll, ppoll, select, pselect6, sched_yield, nanosleep, clock_nanosleep, futex, membarrier, restart_syscall
    "waits": ((7, 271, 23, 270, 24, 35, 230, 202, 324, 219), (73, 72, 124, 101, 115, 98, 283, 128)),
    # gettimeofday, time, times, clock_gettime, clock_getres, alarm, getitimer, setitimer, getrandom
    "time": ((96, 201, 100, 228, 229, 37, 36, 38, 318), (169, 153, 113, 114, 102, 103, 278)),
    # rt_sigaction, rt_sigprocmask, rt_sigreturn, sigaltstack, exit, exit_group, set_tid_address, set_robust_list, rseq
    "threads": ((13, 14, 15, 131, 60, 231, 218, 273, 334), (134, 135, 139, 132, 93, 94, 96, 99, 293)),
    # uname, getrlimit, getrusage, getcpu
    "machine": ((63, 97, 98, 309), (160, 163, 165, 168)),
    # getpid, gettid, getppid, getuid, geteuid, getgid, getegid
    "itself": ((39, 186, 110, 102, 107, 104, 108), (172, 178, 173, 174, 175, 176, 177)),
}  # fmt: skip
OPEN = (2, None)
OPENAT = (257, 56)
FCNTL = (72, 25)
CLONE = (56, 220)
SOCKET = (41, 198)
PRLIMIT = (302, 261)
# sched_setscheduler, sched_getscheduler, sched_setaffinity, sched_getaffinity: of the calling thread
OWN = ((144, 119), (145, 120), (203, 122), (204, 123))
CLONE3 = 435  # its flags lie in memory, which a filter cannot read: libraries go back to clone

WRITES = 0o1103  # O_WRONLY | O_RDWR | O_CREAT | O_TRUNC
LOCKS = 5  # from this command of fcntl on: locks, leases, notices, which other processes see
DUPLICATE = 1030  # F_DUPFD_CLOEXEC
THREAD = 0x10000  # CLONE_THREAD
NAMESPACES = 0x7E020000  # CLONE_NEW…
AF_UNIX = 1
ALLOW = 0x7FFF0000  # SECCOMP_RET_ALLOW
REFUSE = 0x00050000  # SECCOMP_RET_ERRNO
EPERM = 1
ENOSYS = 38
# BPF's instructions: of the number that is loaded
LOAD = 0x20
EQUAL = 0x15
ABOVE = 0x35  # or equal
ANY_BIT = 0x45
RETURN = 0x06
# where they lie in seccomp_data
NUMBER = 0
ARCHITECTURE = 4
ARGUMENTS = 16  # of 8 bytes, the low ones first

Rows = list[tuple[int, int, int, int]]
NO: Rows = [(RETURN, 0, 0, REFUSE | EPERM)]
YES: Rows = [(RETURN, 0, 0, ALLOW)]


def sandbox_filter(machine: str) -> bytes:
    """Everything but `REFUSED`, new namespaces, and sockets other than local ones."""
    _, own = MACHINES[machine]
    rows = _begin(machine)
    for number in _numbers(REFUSED, own):
        rows += _call(number, NO)
    rows += _call(CLONE[own], _where(0, ANY_BIT, NAMESPACES, NO, YES))
    rows += _call(SOCKET[own], _where(0, EQUAL, AF_UNIX, YES, NO))
    return _packed(rows + YES)


def answer_filter(machine: str) -> bytes:
    """Nothing but `GRANTED`, files to read, threads, how they are scheduled, and a look at limits."""
    _, own = MACHINES[machine]
    rows = _begin(machine)
    for number in _numbers(GRANTED, own):
        rows += _call(number, YES)
    rows += _call(OPEN[own], _where(1, ANY_BIT, WRITES, NO, YES))
    rows += _call(OPENAT[own], _where(2, ANY_BIT, WRITES, NO, YES))
    rows += _call(FCNTL[own], _where(1, EQUAL, DUPLICATE, YES, _where(1, ABOVE, LOCKS, NO, YES)))
    rows += _call(CLONE[own], _where(0, ANY_BIT, THREAD, YES, NO))
    rows += _call(PRLIMIT[own], _where(2, EQUAL, 0, YES, NO))
    for numbers in OWN:
        rows += _call(numbers[own], _where(0, EQUAL, 0, YES, NO))
    return _packed(rows + NO)


def keep_to_itself() -> None:
    """From now on this thread, and all that it starts, have `answer_filter`; where the kernel has no such filters,
    nothing happens."""
    if platform.system() != "Linux" or platform.machine() not in MACHINES:
        return
    code = answer_filter(platform.machine())
    rows = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(rows))
    PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2  # prctl(2)
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program)


def _begin(machine: str) -> Rows:
    architecture, _ = MACHINES[machine]
    rows = [(LOAD, 0, 0, ARCHITECTURE), (EQUAL, 1, 0, architecture), *NO, (LOAD, 0, 0, NUMBER)]
    # calls of the 32 bits with 64-bit registers have numbers of their own
    rows += [(ABOVE, 0, 1, 0x40000000), *NO]
    return rows + _call(CLONE3, [(RETURN, 0, 0, REFUSE | ENOSYS)])


def _numbers(table: dict, own: int) -> list[int]:
    return [number for numbers in table.values() for number in numbers[own]]


def _call(number: int | None, rows: Rows) -> Rows:
    """What is done with one call, where there is such a call: `rows`, which end the program."""
    return [] if number is None else [(EQUAL, 0, len(rows), number), *rows]


def _where(argument: int, test: int, value: int, then: Rows, otherwise: Rows) -> Rows:
    """What is done where an argument of the call passes a test, and where not."""
    load = (LOAD, 0, 0, ARGUMENTS + 8 * argument)
    return [load, (test, 0, len(then), value), *then, *otherwise]


def _packed(rows: Rows) -> bytes:
    return b"".join(struct.pack("HBBI", *row) for row in rows)
