"""The filter of system calls, for every machine that it is for: numbers as the kernel has them, and verdicts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trt_runtime.isolation import confinement

HEADERS = {"x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "aarch64": "/usr/include/asm-generic/unistd.h"}
"""Where the kernel's numbers are; those of aarch64 are the generic ones."""

LEGACY = {
    *("fork", "vfork", "creat", "rename", "mkdir", "rmdir", "unlink", "link", "symlink", "chmod", "chown", "lchown"),
    *("mknod", "utime", "utimes", "futimesat", "iopl", "ioperm", "modify_ldt", "open"),
}
"""System calls that machines after x86_64 never had."""

CLOSE, MMAP = {"x86_64": 3, "aarch64": 57}, {"x86_64": 9, "aarch64": 222}
PROCESS = 77


@pytest.mark.parametrize("machine", HEADERS)
def test_numbers_are_those_of_the_kernel(machine: str) -> None:
    header = Path(HEADERS[machine])
    if not header.is_file():
        pytest.skip("the kernel's headers are not installed")
    text = header.read_text(encoding="ascii", errors="replace")
    known = {name: int(number) for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)\b", text)}
    if machine == "aarch64":
        known |= {"renameat": 38}  # a later header leaves it out for later machines
    wrong = {
        name: (number, known[name])
        for name, number in confinement._NUMBERS[machine].items()
        if name in known and known[name] != number
    }
    assert not wrong
    newer = {name for name in confinement._NUMBERS[machine] if name not in known}
    assert all(confinement._NUMBERS[machine][name] > 440 for name in newer), newer  # headers may be older than the list
    seccomp, landlock = known["seccomp"], known.get("landlock_create_ruleset", 444)
    assert (confinement._SECCOMP[machine], confinement._CREATE_RULESET) == (seccomp, landlock)


@pytest.mark.parametrize("machine", HEADERS)
def test_every_call_that_is_named_has_a_number_of_its_own(machine: str) -> None:
    numbers = confinement._NUMBERS[machine]
    missing = set(confinement._NAMES) - numbers.keys()
    assert missing == (LEGACY - {"open"} if machine == "aarch64" else set())
    assert len(set(numbers.values())) == len(numbers)
    assert max(numbers.values()) <= confinement._LAST_KNOWN


def _verdict(machine: str, number: int, *arguments: int, audit: int | None = None, opens_devices: bool = False) -> int:
    """What the filter says of a call: it is run as the kernel runs it."""
    given = {0: number, 4: confinement._AUDIT[machine] if audit is None else audit}
    given |= {16 + 8 * at: value & 0xFFFFFFFF for at, value in enumerate((*arguments, 0, 0, 0, 0))}
    program = confinement._program(machine, PROCESS, opens_devices)
    at = loaded = 0
    while True:
        operation, if_true, if_false, operand = program[at]
        at += 1
        if operation == confinement._LOAD:
            loaded = given[operand]
        elif operation == confinement._RETURN:
            return operand
        else:
            holds = {
                confinement._EQUALS: loaded == operand,
                confinement._AT_LEAST: loaded >= operand,
                confinement._HAS_BITS: bool(loaded & operand),
            }[operation]
            at += if_true if holds else if_false


@pytest.mark.parametrize("machine", HEADERS)
def test_verdicts(machine: str) -> None:
    numbers = confinement._NUMBERS[machine]
    allow, refuse = confinement._ALLOW, confinement._REFUSE
    for name in confinement._NAMES:
        assert name in LEGACY or _verdict(machine, numbers[name]) == refuse | 1, name
    for number in (CLOSE[machine], MMAP[machine], numbers["fcntl"], numbers["ioctl"]):
        assert _verdict(machine, number) == allow
    assert _verdict(machine, CLOSE[machine], audit=0x40000003) == confinement._KILL
    assert _verdict(machine, confinement._LAST_KNOWN + 1) == refuse | 38
    for name in ("clone3", "openat2"):
        assert _verdict(machine, numbers[name]) == refuse | 38
    assert _verdict(machine, numbers["clone"], confinement._THREAD) == allow
    assert _verdict(machine, numbers["clone"], 0x11) == refuse | 1
    for name in ("kill", "tgkill"):
        assert _verdict(machine, numbers[name], PROCESS) == allow
        assert _verdict(machine, numbers[name], PROCESS + 1) == refuse | 1
    for flags, wanted in ((0, allow), (0x80000, allow), (1, refuse | 13), (2, refuse | 13), (0x40, refuse | 13)):
        assert _verdict(machine, numbers["openat"], 0, 0, flags) == wanted
        assert _verdict(machine, numbers["openat"], 0, 0, flags, opens_devices=True) == allow
    for request in confinement._SENDS_SIGNALS:
        assert _verdict(machine, numbers["fcntl"], 0, request) == refuse | 1
    for request in confinement._TAKES_OVER:
        assert _verdict(machine, numbers["ioctl"], 0, request) == refuse | 1
    assert [_verdict(machine, numbers["prlimit64"], who) for who in (0, PROCESS, 1)] == [allow, allow, refuse | 1]
