"""What a process denies itself for good: files, network, other processes. By Linux, with Landlock and seccomp.

Landlock takes away all files but those that are named. seccomp refuses system calls: those that open a file for writing
or change one, that make sockets, start programs or processes, look into other processes, or are newer than this list.
Neither can be undone, asks for a right, or needs a library.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

_NAMES: Final = (
    # processes and programs
    *("fork", "vfork", "execve", "execveat", "ptrace", "process_vm_readv", "process_vm_writev", "kcmp"),
    *("pidfd_open", "pidfd_getfd", "pidfd_send_signal", "process_madvise", "process_mrelease", "tkill"),
    *("rt_sigqueueinfo", "rt_tgsigqueueinfo", "migrate_pages", "move_pages", "setpriority", "ioprio_set"),
    # network, and what processes share
    *("socket", "socketpair", "connect", "bind", "listen", "accept", "accept4"),
    *("shmget", "shmat", "shmctl", "semget", "msgget", "mq_open", "memfd_create", "memfd_secret"),
    # files
    *("creat", "rename", "renameat", "renameat2", "mkdir", "mkdirat", "rmdir", "unlink", "unlinkat", "link", "linkat"),
    *("symlink", "symlinkat", "chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat"),
    *("mknod", "mknodat", "truncate", "ftruncate", "fallocate", "utime", "utimes", "utimensat", "futimesat"),
    *("setxattr", "lsetxattr", "fsetxattr", "removexattr", "lremovexattr", "fremovexattr"),
    *("name_to_handle_at", "open_by_handle_at", "fanotify_init"),
    # the system
    *("mount", "umount2", "pivot_root", "chroot", "swapon", "swapoff", "open_tree", "move_mount", "fsopen", "fsconfig"),
    *("fsmount", "fspick", "mount_setattr", "quotactl", "unshare", "setns", "bpf", "perf_event_open", "userfaultfd"),
    *("keyctl", "add_key", "request_key", "io_uring_setup", "io_uring_enter", "io_uring_register", "init_module"),
    *("finit_module", "delete_module", "kexec_load", "reboot", "sethostname", "setdomainname", "settimeofday"),
    *("clock_settime", "clock_adjtime", "adjtimex", "iopl", "ioperm", "acct", "personality", "syslog", "modify_ldt"),
)
"""System calls that are refused whatever their arguments."""

# fmt: off
_COMMON: Final = {  # numbers of the same value everywhere
    "pidfd_send_signal": 424, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_open": 434, "clone3": 435,
    "openat2": 437, "pidfd_getfd": 438, "process_madvise": 440, "mount_setattr": 442, "memfd_secret": 447,
    "process_mrelease": 448, "fchmodat2": 452,
}
_NUMBERS: Final[dict[str, dict[str, int]]] = {
    "x86_64": _COMMON | {
        "ioctl": 16, "fcntl": 72,
        "open": 2, "shmget": 29, "shmat": 30, "shmctl": 31, "socket": 41, "connect": 42, "accept": 43, "bind": 49,
        "listen": 50, "socketpair": 53, "clone": 56, "fork": 57, "vfork": 58, "execve": 59, "kill": 62, "semget": 64,
        "msgget": 68, "truncate": 76, "ftruncate": 77, "rename": 82, "mkdir": 83, "rmdir": 84, "creat": 85, "link": 86,
        "unlink": 87, "symlink": 88, "chmod": 90, "fchmod": 91, "chown": 92, "fchown": 93, "lchown": 94, "ptrace": 101,
        "syslog": 103, "rt_sigqueueinfo": 129, "utime": 132, "mknod": 133, "personality": 135, "setpriority": 141,
        "modify_ldt": 154, "pivot_root": 155, "adjtimex": 159, "chroot": 161, "acct": 163, "settimeofday": 164,
        "mount": 165, "umount2": 166, "swapon": 167, "swapoff": 168, "reboot": 169, "sethostname": 170,
        "setdomainname": 171, "iopl": 172, "ioperm": 173, "init_module": 175, "delete_module": 176, "quotactl": 179,
        "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190, "removexattr": 197, "lremovexattr": 198,
        "fremovexattr": 199, "tkill": 200, "clock_settime": 227, "tgkill": 234, "utimes": 235, "mq_open": 240,
        "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250, "ioprio_set": 251, "migrate_pages": 256,
        "openat": 257, "mkdirat": 258, "mknodat": 259, "fchownat": 260, "futimesat": 261, "unlinkat": 263,
        "renameat": 264, "linkat": 265, "symlinkat": 266, "fchmodat": 268, "unshare": 272, "move_pages": 279,
        "utimensat": 280, "fallocate": 285, "accept4": 288, "rt_tgsigqueueinfo": 297, "perf_event_open": 298,
        "fanotify_init": 300, "prlimit64": 302, "name_to_handle_at": 303, "open_by_handle_at": 304,
        "clock_adjtime": 305, "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312,
        "finit_module": 313, "renameat2": 316, "memfd_create": 319, "bpf": 321, "execveat": 322, "userfaultfd": 323,
    },
    "aarch64": _COMMON | {
        "fcntl": 25, "ioctl": 29,
        "setxattr": 5, "lsetxattr": 6, "fsetxattr": 7, "removexattr": 14, "lremovexattr": 15, "fremovexattr": 16,
        "ioprio_set": 30, "mknodat": 33, "mkdirat": 34, "unlinkat": 35, "symlinkat": 36, "linkat": 37, "renameat": 38,
        "umount2": 39, "mount": 40, "pivot_root": 41, "truncate": 45, "ftruncate": 46, "fallocate": 47, "chroot": 51,
        "fchmod": 52, "fchmodat": 53, "fchownat": 54, "fchown": 55, "openat": 56, "quotactl": 60, "utimensat": 88,
        "acct": 89, "personality": 92, "unshare": 97, "kexec_load": 104, "init_module": 105, "delete_module": 106,
        "clock_settime": 112, "syslog": 116, "ptrace": 117, "kill": 129, "tkill": 130, "tgkill": 131,
        "rt_sigqueueinfo": 138, "setpriority": 140, "reboot": 142, "sethostname": 161, "setdomainname": 162,
        "settimeofday": 170, "adjtimex": 171, "mq_open": 180, "msgget": 186, "semget": 190, "shmget": 194,
        "shmctl": 195, "shmat": 196, "socket": 198, "socketpair": 199, "bind": 200, "listen": 201, "accept": 202,
        "connect": 203, "add_key": 217, "request_key": 218, "keyctl": 219, "clone": 220, "execve": 221, "swapon": 224,
        "swapoff": 225, "migrate_pages": 238, "move_pages": 239, "rt_tgsigqueueinfo": 240, "perf_event_open": 241,
        "accept4": 242, "prlimit64": 261, "fanotify_init": 262, "name_to_handle_at": 264, "open_by_handle_at": 265,
        "clock_adjtime": 266, "setns": 268, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272,
        "finit_module": 273, "renameat2": 276, "memfd_create": 279, "bpf": 280, "execveat": 281, "userfaultfd": 282,
    },
}
# fmt: on
_AUDIT: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_LAST_KNOWN: Final = 462
"""Calls of later numbers do not exist, as far as the process is told."""

_SECCOMP: Final = {"x86_64": 317, "aarch64": 277}
_FILTER_MODE, _ALL_THREADS = 1, 1

_LOAD, _EQUALS, _AT_LEAST, _HAS_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_AT_NUMBER, _AT_MACHINE, _AT_ARGUMENTS = 0, 4, 16

_WRITES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_THREAD: Final = 0x00010000
"""`CLONE_THREAD`: what is begun is a thread, and no process."""

_SENDS_SIGNALS: Final = (8, 10, 15)
"""Requests of `fcntl` that have signals sent: `F_SETOWN`, `F_SETSIG`, `F_SETOWN_EX`."""

_TAKES_OVER: Final = (0x5412, 0x541C, 0x8901, 0x8902)
"""Requests of `ioctl` that type into terminals or have signals sent: `TIOCSTI`, `TIOCLINUX`, owners of sockets."""

_NO_NEW_PRIVILEGES, _DEATH_SIGNAL, _DUMPABLE = 38, 1, 4

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG: Final = 1
_READ_FILE, _READ_FOLDER, _WRITE_FILE, _DEVICE_CONTROL = 1 << 2, 1 << 3, 1 << 1, 1 << 15
_FILE_RIGHTS: Final = {1: 13, 2: 14, 3: 15, 5: 16}
"""How many kinds of access the versions of Landlock know."""

_NEW_NETWORK, _NEW_QUEUES = 0x40000000, 0x08000000


class CannotConfine(OSError):
    """The system does not let processes confine themselves; the text says why."""


def why_not_here() -> str:
    """Why processes cannot be confined here; nothing where they can."""
    if sys.platform != "linux":
        return f"this is {sys.platform}, and only Linux has what confines a process"
    if platform.machine() not in _NUMBERS:
        return f"the system calls of {platform.machine()} are not known"
    if _library().prctl(21, 0, 0, 0, 0) < 0 and ctypes.get_errno() == errno.EINVAL:
        return "the kernel was built without seccomp"
    return ""


def die_with(parent: int) -> None:
    """Ends this process with the one that has started it.

    Args:
        parent: That process.
    """
    _library().prctl(_DEATH_SIGNAL, 9, 0, 0, 0)
    if os.getppid() != parent:  # it is gone already
        raise SystemExit(1)


def give_up_privileges() -> None:
    """Gives up all capabilities and the hope for others, and the network where that can be; for one thread alone."""
    library = _library()
    library.unshare(_NEW_NETWORK | _NEW_QUEUES)  # for those who may; others have the refusal of sockets
    if library.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) < 0:
        raise CannotConfine(ctypes.get_errno(), "the process could get privileges again")
    library.prctl(_DUMPABLE, 0, 0, 0, 0)
    header = struct.pack("=Ii", 0x20080522, 0)
    library.capset(header, bytes(24))


def restrict_files(readable: Iterable[str], devices: Iterable[str] = ()) -> bool:
    """Takes all files from this thread, and from those that it begins, but some; and sockets and signals to others.

    Args:
        readable: Files and folders that may still be read.
        devices: Files that may be read, written and controlled.

    Returns:
        Whether the kernel has what it takes, Landlock.
    """
    library = _library()
    version = library.syscall(_CREATE_RULESET, None, 0, _VERSION_FLAG)
    if version < 1:
        return False
    count = max(count for since, count in _FILE_RIGHTS.items() if since <= version)
    rights = (1 << count) - 1
    attributes = struct.pack("=QQQ", rights, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = library.syscall(_CREATE_RULESET, attributes, size, 0)
    if ruleset < 0:
        return False
    try:
        for path in readable:
            _add_rule(ruleset, path, _READ_FILE | _READ_FOLDER)
        for path in devices:
            _add_rule(ruleset, path, (_READ_FILE | _READ_FOLDER | _WRITE_FILE | _DEVICE_CONTROL) & rights)
        return bool(library.syscall(_RESTRICT_SELF, ruleset, 0) == 0)
    finally:
        os.close(ruleset)


def _add_rule(ruleset: int, path: str, rights: int) -> None:
    with contextlib.suppress(OSError):  # what is not there needs no rule
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            if not os.path.isdir(path):
                rights &= ~_READ_FOLDER
            rule = struct.pack("=Qi", rights, descriptor)
            _library().syscall(_ADD_RULE, ruleset, 1, rule, 0)
        finally:
            os.close(descriptor)


def restrict_calls(*, opens_devices: bool = False) -> None:
    """Takes system calls from all threads of this process.

    Args:
        opens_devices: Files may be opened for writing, where Landlock lets them be: drivers of GPUs do so.

    Raises:
        CannotConfine: The kernel refuses.
    """
    machine = platform.machine()
    content = b"".join(struct.pack("=HBBI", *one) for one in _program(machine, os.getpid(), opens_devices))
    memory = ctypes.create_string_buffer(content, len(content))
    program = struct.pack("=HxxxxxxQ", len(content) // 8, ctypes.addressof(memory))
    if _library().syscall(_SECCOMP[machine], _FILTER_MODE, _ALL_THREADS, program) != 0:
        raise CannotConfine(ctypes.get_errno(), "the kernel takes no filter of system calls")


_Instruction = tuple[int, int, int, int]


def _program(machine: str, process: int, opens_devices: bool) -> list[_Instruction]:
    """The filter: (operation, jump if true, jump if false, operand)."""
    numbers = _NUMBERS[machine]

    def refuse(number: int = errno.EPERM) -> list[_Instruction]:
        return [(_RETURN, 0, 0, _REFUSE | number)]

    def allow() -> list[_Instruction]:
        return [(_RETURN, 0, 0, _ALLOW)]

    def argument(index: int) -> _Instruction:
        return (_LOAD, 0, 0, _AT_ARGUMENTS + 8 * index)

    def refuse_values(values: Sequence[int]) -> list[_Instruction]:
        return [part for value in values for part in ((_EQUALS, 0, 1, value), *refuse())]

    def rules() -> Iterator[tuple[str, Sequence[_Instruction]]]:
        """What becomes of a call; each ends it."""
        for name in _NAMES:
            yield name, refuse()
        for name in ("clone3", "openat2"):  # the C library has a way without them, whose arguments can be looked at
            yield name, refuse(errno.ENOSYS)
        yield "clone", [argument(0), (_HAS_BITS, 1, 0, _THREAD), *refuse(), *allow()]
        for name in ("kill", "tgkill"):
            yield name, [argument(0), (_EQUALS, 1, 0, process), *refuse(), *allow()]
        yield "prlimit64", [argument(0), (_EQUALS, 2, 0, 0), (_EQUALS, 1, 0, process), *refuse(), *allow()]
        yield "fcntl", [argument(1), *refuse_values(_SENDS_SIGNALS), *allow()]
        yield "ioctl", [argument(1), *refuse_values(_TAKES_OVER), *allow()]
        if not opens_devices:
            for name, index in (("open", 1), ("openat", 2)):
                yield name, [argument(index), (_HAS_BITS, 0, 1, _WRITES), *refuse(errno.EACCES), *allow()]

    found: list[_Instruction] = [
        (_LOAD, 0, 0, _AT_MACHINE),
        (_EQUALS, 1, 0, _AUDIT[machine]),
        (_RETURN, 0, 0, _KILL),  # calls as another machine makes them have other numbers
        (_LOAD, 0, 0, _AT_NUMBER),
        (_AT_LEAST, 0, 1, _LAST_KNOWN + 1),
        *refuse(errno.ENOSYS),
    ]
    for name, instructions in rules():
        if name in numbers:
            found += [(_EQUALS, 0, len(instructions), numbers[name]), *instructions]
    return [*found, *allow()]


def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
