"""What a program in the sandbox may ask of the kernel: a filter of system calls for seccomp.

The filter is a list of what is allowed, so what a later kernel brings is refused. Nothing on it
makes a process, a name space, a socket to elsewhere, or memory that no limit counts: then the limit
of one process's address space is the limit of all memory.
"""

from __future__ import annotations

import platform
import struct
from functools import lru_cache

_LOAD, _JUMP_IF_EQUAL, _AND, _RETURN = 0x20, 0x15, 0x54, 0x06
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS = 1, 38
"""What is not on the list does not exist: the C library then falls back from new calls to old."""

_CLONE_THREAD = 0x00010000
_CLONE_KINDS = _CLONE_THREAD | 0x7E020000
"""The bits of `clone` that decide: a thread of this process, or something in new name spaces."""

_MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""Audit architectures, from linux/audit.h."""

_FREE = {
    "read": (0, 63), "write": (1, 64), "open": (2, None), "close": (3, 57), "stat": (4, None),
    "fstat": (5, 80), "lstat": (6, None), "poll": (7, None), "lseek": (8, 62), "mmap": (9, 222),
    "mprotect": (10, 226), "munmap": (11, 215), "brk": (12, 214), "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "pread64": (17, 67),
    "pwrite64": (18, 68), "readv": (19, 65), "writev": (20, 66), "access": (21, None),
    "pipe": (22, None), "select": (23, None), "sched_yield": (24, 124), "mremap": (25, 216),
    "msync": (26, 227), "mincore": (27, 232), "madvise": (28, 233), "dup": (32, 23),
    "dup2": (33, None), "pause": (34, None), "nanosleep": (35, 101), "getitimer": (36, 102),
    "alarm": (37, None), "setitimer": (38, 103), "getpid": (39, 172), "sendto": (44, 206),
    "recvfrom": (45, 207), "shutdown": (48, 210), "getsockname": (51, 204),
    "getpeername": (52, 205), "getsockopt": (55, 209), "exit": (60, 93), "wait4": (61, 260),
    "kill": (62, 129), "uname": (63, 160), "fsync": (74, 82), "fdatasync": (75, 83),
    "ftruncate": (77, 46), "getdents": (78, None), "getcwd": (79, 17), "chdir": (80, 49),
    "fchdir": (81, 50), "readlink": (89, None), "umask": (95, 166), "gettimeofday": (96, 169),
    "getrlimit": (97, 163), "getrusage": (98, 165), "sysinfo": (99, 179), "times": (100, 153),
    "getuid": (102, 174), "getgid": (104, 176), "geteuid": (107, 175), "getegid": (108, 177),
    "getppid": (110, 173), "getpgrp": (111, None), "getgroups": (115, 158),
    "getresuid": (118, 148), "getresgid": (120, 150), "getpgid": (121, 155), "getsid": (124, 156),
    "rt_sigpending": (127, 136), "rt_sigtimedwait": (128, 137), "rt_sigsuspend": (130, 133),
    "sigaltstack": (131, 132), "statfs": (137, 43), "fstatfs": (138, 44),
    "sched_getparam": (143, 121), "sched_getscheduler": (145, 120),
    "sched_get_priority_max": (146, 125), "sched_get_priority_min": (147, 126),
    "arch_prctl": (158, None), "setrlimit": (160, 164), "gettid": (186, 178), "tkill": (200, 130),
    "time": (201, None), "futex": (202, 98), "sched_getaffinity": (204, 123),
    "getdents64": (217, 61), "set_tid_address": (218, 96), "restart_syscall": (219, 128),
    "fadvise64": (221, 223), "clock_gettime": (228, 113), "clock_getres": (229, 114),
    "clock_nanosleep": (230, 115), "exit_group": (231, 94), "epoll_wait": (232, None),
    "epoll_ctl": (233, 21), "tgkill": (234, 131), "waitid": (247, 95), "openat": (257, 56),
    "newfstatat": (262, 79), "readlinkat": (267, 78), "faccessat": (269, 48),
    "pselect6": (270, 72), "ppoll": (271, 73), "set_robust_list": (273, 99),
    "get_robust_list": (274, 100), "epoll_pwait": (281, 22), "epoll_create1": (291, 20),
    "dup3": (292, 24), "pipe2": (293, 59), "getcpu": (309, 168), "getrandom": (318, 278),
    "statx": (332, 291), "rseq": (334, 293), "close_range": (436, 436), "faccessat2": (439, 439),
}  # fmt: skip
"""Calls that are allowed with any arguments: (number on x86_64, number on aarch64)."""

_BOUND: dict[str, tuple[tuple[int, int], int, int, tuple[int, ...]]] = {
    "ioctl": ((16, 29), 1, ~0, (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)),
    # Duplicate, and flags: no locks, whose number nothing bounds, and no larger pipes.
    "fcntl": ((72, 25), 1, ~0, (0, 1, 2, 3, 4, 1030)),
    "socketpair": ((53, 199), 0, ~0, (1,)),
    "clone": ((56, 220), 0, _CLONE_KINDS, (_CLONE_THREAD,)),
    "prlimit64": ((302, 261), 0, ~0, (0,)),  # of itself, not of what watches it
}
"""Calls of which one argument must have one of some values, after a mask: numbers, which argument,
mask, values."""


def why_no_filter(machine: str | None = None) -> str:
    """Why no filter can be made for a machine, this one unless told; "" where one can."""
    machine = machine or platform.machine()
    if machine in _MACHINES:
        return ""
    return f"the filter of system calls knows {' and '.join(_MACHINES)}, not {machine}"


@lru_cache
def system_call_filter(machine: str | None = None) -> bytes:
    """The filter for a machine, this one unless told, as `struct sock_filter[]` in its order.

    See linux/seccomp.h and linux/filter.h. A call of another architecture ends the program.
    """
    machine = machine or platform.machine()
    machine_index = list(_MACHINES).index(machine)
    steps = [
        _step(_LOAD, 4),  # seccomp_data.arch
        _step(_JUMP_IF_EQUAL, _MACHINES[machine], if_so=1),
        _step(_RETURN, _KILL),
        _step(_LOAD, 0),  # seccomp_data.nr
    ]
    for numbers, argument, mask, values in _BOUND.values():
        checks = [_step(_LOAD, 16 + 8 * argument), _step(_AND, mask)]  # the low half of it
        for value in values:
            checks += [_step(_JUMP_IF_EQUAL, value, if_not=1), _step(_RETURN, _ALLOW)]
        checks.append(_step(_RETURN, _ERROR | _EPERM))
        steps += [_step(_JUMP_IF_EQUAL, numbers[machine_index], if_not=len(checks)), *checks]
    for free in _FREE.values():
        if (number := free[machine_index]) is not None:
            steps += [_step(_JUMP_IF_EQUAL, number, if_not=1), _step(_RETURN, _ALLOW)]
    steps.append(_step(_RETURN, _ERROR | _ENOSYS))
    return b"".join(steps)


def _step(code: int, value: int, *, if_so: int = 0, if_not: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_so, if_not, value & 0xFFFFFFFF)
