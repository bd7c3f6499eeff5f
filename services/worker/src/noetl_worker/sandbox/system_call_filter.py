"""A filter of system calls (seccomp): sockets of kinds that a task needs, and its own processes.

A filter sees numbers, not what pointers lead to. It therefore refuses a kind of socket as a whole:
one that could reach the sockets of other programs by their paths. Pairs of sockets, which reach
nobody else, stay. It refuses calls that act on other processes, that change what this process sees,
and those that tasks have no use for and in which kernels were attacked most.
"""

import ctypes
import errno
import os
import struct
import sys
from typing import NamedTuple

_NR_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SET_FILTER = 1
# Otherwise older kernels slow the process down, as if it guessed at memory.
_ALLOW_SPECULATION = 4
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000

_LOAD, _IS_EQUAL, _IS_AT_LEAST, _HAS_BITS, _MASK, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000
_AT_NUMBER, _AT_ARCHITECTURE, _AT_ARGUMENTS = 0, 4, 16
_INSTRUCTION = struct.Struct("HBBI")

_INET, _INET6, _NETLINK = 2, 10, 16
_STREAM, _SEQUENCED = 1, 5
_KIND_BITS = 0xF
# Of clone: a namespace of its own of any kind.
_NAMESPACES = 0x7E020080

MISSING = "this system refuses filters of system calls (CONFIG_SECCOMP_FILTER), or has none of ours"

# Numbers of x86_64 and aarch64; None where a machine has no such call.
_NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "socket": (41, 198),
    "socketpair": (53, 199),
    "clone": (56, 220),
    "clone3": (435, 435),
    "unshare": (272, 97),
    "setns": (308, 268),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "prlimit64": (302, 261),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
    "sched_setaffinity": (203, 122),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "shmget": (29, 194),
    "shmctl": (31, 195),
    "shmat": (30, 196),
    "semget": (64, 190),
    "semctl": (66, 191),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "msgget": (68, 186),
    "msgctl": (71, 187),
    "msgrcv": (70, 188),
    "msgsnd": (69, 189),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "fanotify_init": (300, 262),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "syslog": (103, 116),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "personality": (135, 92),
    "vhangup": (153, 58),
}
# Programs that find these missing go on without them.
_UNKNOWN = ("clone3", "io_uring_setup", "io_uring_enter", "io_uring_register")
# These may be used for the caller itself, which is 0 in the argument with this index.
_OF_OTHERS = {
    "prlimit64": (0,),
    "setpriority": (0, 1),
    "ioprio_set": (1,),
    "sched_setparam": (0,),
    "sched_setscheduler": (0,),
    "sched_setattr": (0,),
    "sched_setaffinity": (0,),
    "migrate_pages": (0,),
    "move_pages": (0,),
}
_SPECIAL = frozenset({"socket", "socketpair", "clone", "personality", *_UNKNOWN, *_OF_OTHERS})
# What `personality` returns is asked for with all bits.
_ASK_PERSONALITY = 0xFFFFFFFF


class _Instruction(NamedTuple):
    code: int
    value: int
    if_true: int = 0
    if_false: int = 0


def install_filter(libc: ctypes.CDLL, *, has_network: bool) -> bool:
    """Refuse calls of this process and its children for ever; tell whether that was granted.

    Without a network also the sockets of the internet are refused: `has_network` is true where
    they reach nothing, in a network of the process's own.
    """
    machine = os.uname().machine
    if machine not in _ARCHITECTURES or struct.calcsize("P") != struct.calcsize("Q"):
        return False
    program = b"".join(
        _INSTRUCTION.pack(item.code, item.if_true, item.if_false, item.value)
        for item in _build_program(machine, has_network=has_network)
    )
    code = ctypes.create_string_buffer(program, len(program))
    count = len(program) // _INSTRUCTION.size
    head = struct.pack("HxxxxxxP", count, ctypes.addressof(code))
    number = _NR_SECCOMP[machine]
    return bool(libc.syscall(number, _SET_FILTER, _ALLOW_SPECULATION, head) == 0)


def _build_program(machine: str, *, has_network: bool) -> list[_Instruction]:
    column = list(_ARCHITECTURES).index(machine)
    program = [
        _Instruction(_LOAD, _AT_ARCHITECTURE),
        # Calls of another architecture have other numbers.
        _Instruction(_IS_EQUAL, _ARCHITECTURES[machine], if_true=1),
        _refuse_call(errno.ENOSYS),
        _Instruction(_LOAD, _AT_NUMBER),
        _Instruction(_IS_AT_LEAST, _X32_BIT, if_false=1),
        _refuse_call(errno.ENOSYS),
    ]
    for name, numbers in _NUMBERS.items():
        number = numbers[column]
        if number is not None:
            body = _build_answer(name, has_network=has_network)
            program += [_Instruction(_IS_EQUAL, number, if_false=len(body)), *body]
    return [*program, _allow_call()]


def _build_answer(name: str, *, has_network: bool) -> list[_Instruction]:
    """Say what becomes of a call; every way through it ends."""
    if name == "socket":
        return _answer_socket(has_network=has_network)
    if name == "socketpair":
        # Others could be connected anew, to a socket of somebody else.
        return [
            _load_argument(1),
            _Instruction(_MASK, _KIND_BITS),
            _Instruction(_IS_EQUAL, _STREAM, if_true=2),
            _Instruction(_IS_EQUAL, _SEQUENCED, if_true=1),
            _refuse_call(errno.EAFNOSUPPORT),
            _allow_call(),
        ]
    if name == "clone":
        return [
            _load_argument(0),
            _Instruction(_HAS_BITS, _NAMESPACES, if_false=1),
            _refuse_call(errno.EPERM),
            _allow_call(),
        ]
    if name == "personality":
        return [
            _load_argument(0),
            _Instruction(_IS_EQUAL, _ASK_PERSONALITY, if_true=2),
            _Instruction(_IS_EQUAL, 0, if_true=1),
            _refuse_call(errno.EPERM),
            _allow_call(),
        ]
    if name in _OF_OTHERS:
        checks = [
            instruction
            for index in _OF_OTHERS[name]
            for instruction in (
                _load_argument(index),
                _Instruction(_IS_EQUAL, 0, if_true=1),
                _refuse_call(errno.EPERM),
            )
        ]
        return [*checks, _allow_call()]
    return [_refuse_call(errno.ENOSYS if name in _UNKNOWN else errno.EPERM)]


def _answer_socket(*, has_network: bool) -> list[_Instruction]:
    """Allow the sockets of the internet, and the one that tells of the machine's addresses."""
    of_internet = _allow_call() if has_network else _refuse_call(errno.EACCES)
    return [
        _load_argument(0),
        _Instruction(_IS_EQUAL, _INET, if_true=6),
        _Instruction(_IS_EQUAL, _INET6, if_true=5),
        _Instruction(_IS_EQUAL, _NETLINK, if_true=1),
        _refuse_call(errno.EAFNOSUPPORT),
        _load_argument(2),
        _Instruction(_IS_EQUAL, 0, if_true=2),
        _refuse_call(errno.EPROTONOSUPPORT),
        of_internet,
        _allow_call(),
    ]


def _load_argument(index: int) -> _Instruction:
    """Load the lower half of an argument; the calls at hand have no use for the upper one."""
    upper = 0 if sys.byteorder == "little" else 4
    return _Instruction(_LOAD, _AT_ARGUMENTS + 8 * index + upper)


def _allow_call() -> _Instruction:
    return _Instruction(_RETURN, _ALLOW)


def _refuse_call(number: int) -> _Instruction:
    return _Instruction(_RETURN, _REFUSE | number)
