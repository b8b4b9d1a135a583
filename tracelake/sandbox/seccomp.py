"""The system calls that are refused in a sandbox, as a BPF program for the kernel.

A list of refused calls, not of allowed ones: language runtimes differ too much, and namespaces, a separate uid and no
capabilities are the isolation. This blocks known ways to escape, and memory that cannot be counted.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Sequence
from typing import Final

LOAD: Final = 0x20  # a word of the call's description
JUMP_EQUAL: Final = 0x15
JUMP_GREATER_OR_EQUAL: Final = 0x35
JUMP_ANY_BIT: Final = 0x45
AND: Final = 0x54
RETURN: Final = 0x06

ALLOW: Final = 0x7FFF0000
KILL: Final = 0x80000000
REFUSE: Final = 0x00050000  # with the errno in the low half

NUMBER, ARCHITECTURE, FIRST, SECOND = 0, 4, 16, 24
"""Offsets in `struct seccomp_data`; of the arguments the low half."""

NAMESPACES: Final = 0x7E020000
"""Every CLONE_NEW* but the one of time, which `clone` does not take."""
X32: Final = 0x40000000
UNIX, INET, INET6 = 1, 2, 10
RAW, PACKET = 3, 10
TERMINAL_INPUT: Final = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: input into the terminal that started us

ARCHITECTURES: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# name: (x86_64, aarch64); None where there is no such call.
CALLS: Final[dict[str, tuple[int | None, int | None]]] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "perf_event_open": (298, 241),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "unshare": (272, 97),
    "setns": (308, 268),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "lookup_dcookie": (212, 18),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "personality": (135, 92),
    "vhangup": (153, 58),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "nfsservctl": (180, 42),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "vmsplice": (278, 75),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "mbind": (237, 235),
    "set_mempolicy": (238, 237),
    # Memory that belongs to no process and cannot be attributed.
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "mq_open": (240, 180),
}
CLONE: Final = (56, 220)
CLONE3: Final = 435
SOCKET: Final = (41, 198)
IOCTL: Final = (16, 29)


def program(machine: str = platform.machine()) -> bytes:
    """The filter of this machine's architecture, as `bwrap --seccomp` reads it."""
    which = list(ARCHITECTURES).index(machine)
    steps: list[bytes] = [
        _step(LOAD, ARCHITECTURE),
        _step(JUMP_EQUAL, ARCHITECTURES[machine], yes=1),
        _step(RETURN, KILL),
        _step(LOAD, NUMBER),
    ]
    if machine == "x86_64":  # the same calls under other numbers
        steps += [_step(JUMP_GREATER_OR_EQUAL, X32, no=1), _step(RETURN, KILL)]
    for numbers in CALLS.values():
        if (number := numbers[which]) is not None:
            steps += [_step(JUMP_EQUAL, number, no=1), _refuse(errno.EPERM)]
    # Its flags are in memory, which a filter cannot read; on ENOSYS, libraries use `clone`.
    steps += [_step(JUMP_EQUAL, CLONE3, no=1), _refuse(errno.ENOSYS)]
    steps += _only_for(CLONE[which], [_step(LOAD, FIRST), _step(JUMP_ANY_BIT, NAMESPACES, no=1), _refuse(errno.EPERM)])
    steps += _only_for(SOCKET[which], _sockets())
    steps += _only_for(IOCTL[which], _terminals())
    return b"".join([*steps, _step(RETURN, ALLOW)])


def _sockets() -> list[bytes]:
    known = (UNIX, INET, INET6)
    family = [_step(JUMP_EQUAL, name, yes=len(known) - index) for index, name in enumerate(known)]
    raw = [_step(JUMP_EQUAL, RAW, yes=1), _step(JUMP_EQUAL, PACKET, no=1), _refuse(errno.EPERM)]
    return [
        _step(LOAD, FIRST),
        *family,
        _refuse(errno.EAFNOSUPPORT),
        _step(LOAD, SECOND),
        _step(AND, 0xF),
        *raw,
    ]


def _terminals() -> list[bytes]:
    first, second = TERMINAL_INPUT
    return [
        _step(LOAD, SECOND),
        _step(JUMP_EQUAL, first, yes=1),
        _step(JUMP_EQUAL, second, no=1),
        _refuse(errno.EPERM),
    ]


def _only_for(number: int, steps: Sequence[bytes]) -> list[bytes]:
    """Rules by argument; what they do not refuse is allowed."""
    return [_step(JUMP_EQUAL, number, no=len(steps) + 1), *steps, _step(RETURN, ALLOW)]


def _refuse(number: int) -> bytes:
    return _step(RETURN, REFUSE | number)


def _step(code: int, value: int, *, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("<HBBI", code, yes, no, value)
