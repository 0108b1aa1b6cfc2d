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

# Audit architectures.
MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# Names of calls with their numbers on these two machines; "-": there is none.
REFUSED = """
    ptrace 101 117              process_vm_readv 310 270    process_vm_writev 311 271   pidfd_getfd 438 438
    kcmp 312 272                mount 165 40                umount2 166 39              pivot_root 155 41
    chroot 161 51               unshare 272 97              setns 308 268               open_tree 428 428
    move_mount 429 429          fsopen 430 430              fsmount 432 432             mount_setattr 442 442
    open_by_handle_at 304 265   memfd_create 319 279        memfd_secret 447 447        shmget 29 194
    msgget 68 186               semget 64 190               userfaultfd 323 282         io_uring_setup 425 425
    bpf 321 280                 perf_event_open 298 241     add_key 248 217             request_key 249 218
    keyctl 250 219              personality 135 92          syslog 103 116
"""
GRANTED = """
    read 0 63            write 1 64           close 3 57           lseek 8 62           pread64 17 67
    readv 19 65          writev 20 66         dup 32 23            dup2 33 -            dup3 292 24
    pipe2 293 59         stat 4 -             fstat 5 80           lstat 6 -            newfstatat 262 79
    statx 332 291        access 21 -          faccessat 269 48     readlink 89 -        readlinkat 267 78
    getcwd 79 17         getdents64 217 61    mmap 9 222           mprotect 10 226      munmap 11 215
    brk 12 214           mremap 25 216        madvise 28 233       poll 7 -             ppoll 271 73
    select 23 -          pselect6 270 72      sched_yield 24 124   nanosleep 35 101     clock_nanosleep 230 115
    futex 202 98         membarrier 324 283   gettimeofday 96 169  time 201 -           times 100 153
    clock_gettime 228 113    clock_getres 229 114     alarm 37 -           getitimer 36 102     setitimer 38 103
    getrandom 318 278    rt_sigaction 13 134  rt_sigprocmask 14 135    rt_sigreturn 15 139  sigaltstack 131 132
    exit 60 93           exit_group 231 94    set_tid_address 218 96   set_robust_list 273 99    rseq 334 293
    restart_syscall 219 128  uname 63 160     getrlimit 97 163     getrusage 98 165     getcpu 309 168
    getpid 39 172        gettid 186 178       getppid 110 173      getuid 102 174       geteuid 107 175
    getgid 104 176       getegid 108 177
"""
# Granted for the calling thread alone.
OWN = """
    sched_setscheduler 144 119    sched_getscheduler 145 120    sched_setaffinity 203 122    sched_getaffinity 204 123
"""
# Looked into.
OTHERS = "open 2 -  openat 257 56  fcntl 72 25  clone 56 220  clone3 435 435  socket 41 198  prlimit64 302 261  seccomp 317 277"

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
    call = numbers(OTHERS, machine)
    rows = _begin(machine)
    for number in numbers(REFUSED, machine).values():
        rows += _call(number, NO)
    rows += _call(call["clone"], _where(0, ANY_BIT, NAMESPACES, NO, YES))
    rows += _call(call["socket"], _where(0, EQUAL, AF_UNIX, YES, NO))
    return _packed(rows + YES)


def answer_filter(machine: str, threads: bool) -> bytes:
    """Nothing but `GRANTED`, files to read, threads if they are granted, how they are scheduled, and a look at limits."""
    call = numbers(OTHERS, machine)
    rows = _begin(machine)
    for number in numbers(GRANTED, machine).values():
        rows += _call(number, YES)
    for number in numbers(OWN, machine).values():
        rows += _call(number, _where(0, EQUAL, 0, YES, NO))
    if "open" in call:
        rows += _call(call["open"], _where(1, ANY_BIT, WRITES, NO, YES))
    rows += _call(call["openat"], _where(2, ANY_BIT, WRITES, NO, YES))
    locks = _where(1, ABOVE, LOCKS, NO, YES)
    rows += _call(call["fcntl"], _where(1, EQUAL, DUPLICATE, YES, locks))
    if threads:
        rows += _call(call["clone"], _where(0, ANY_BIT, THREAD, YES, NO))
    rows += _call(call["prlimit64"], _where(2, EQUAL, 0, YES, NO))
    return _packed(rows + NO)


def numbers(table: str, machine: str) -> dict[str, int]:
    """{call: its number on this machine}."""
    words = table.split()
    own = words[1 + [*MACHINES].index(machine) :: 3]
    return {name: int(number) for name, number in zip(words[::3], own) if number != "-"}


def keep_to_itself(threads: bool) -> None:
    """From now on all threads of this process, and all that they start, have `answer_filter`; where the kernel has no such
    filters, nothing happens."""
    if platform.system() != "Linux" or platform.machine() not in MACHINES:
        return
    machine = platform.machine()
    code = answer_filter(machine, threads)
    rows = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(rows))
    PR_SET_NO_NEW_PRIVS = 38  # prctl(2)
    SECCOMP_SET_MODE_FILTER = 1
    SECCOMP_FILTER_FLAG_TSYNC = 1
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    seccomp = numbers(OTHERS, machine)["seccomp"]
    libc.syscall(seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, program)


def _begin(machine: str) -> Rows:
    rows = [(LOAD, 0, 0, ARCHITECTURE), (EQUAL, 1, 0, MACHINES[machine]), *NO]
    # calls of the 32 bits with 64-bit registers have numbers of their own
    rows += [(LOAD, 0, 0, NUMBER), (ABOVE, 0, 1, 0x40000000), *NO]
    # its flags lie in memory, which a filter cannot read: libraries go back to clone
    clone3 = numbers(OTHERS, machine)["clone3"]
    return rows + _call(clone3, [(RETURN, 0, 0, REFUSE | ENOSYS)])


def _call(number: int, rows: Rows) -> Rows:
    """What is done with one call: `rows`, which end the program."""
    return [(EQUAL, 0, len(rows), number), *rows]


def _where(argument: int, test: int, value: int, then: Rows, otherwise: Rows) -> Rows:
    """What is done where an argument of the call passes a test, and where not."""
    load = (LOAD, 0, 0, ARGUMENTS + 8 * argument)
    return [load, (test, 0, len(then), value), *then, *otherwise]


def _packed(rows: Rows) -> bytes:
    return b"".join(struct.pack("HBBI", *row) for row in rows)
