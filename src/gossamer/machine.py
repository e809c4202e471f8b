"""This machine: its cores, its arithmetic, what is installed, and how a process makes good use of it.

Importing this imports no torch.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shlex
import shutil
import sys
import threading
import time
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gossamer.errors import ConfigError
from gossamer.system.cores import group_folders, num_cores, num_cpus
from gossamer.system.reading import expand

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

T = TypeVar("T")
FEW_CORES = 4
"""Up to this many, threads share one arena of memory without getting in each other's way."""
MALLOC_OPTIONS = {-1: 2**31 - 1, -3: 32 << 20}
"""glibc's M_TRIM_THRESHOLD and M_MMAP_THRESHOLD, at their greatest."""
M_ARENA_MAX = -8
OPEN_FILES = 1024
"""That a process may always hold open at once, if the system lets it."""


@contextmanager
def same_folder() -> Generator[None]:
    """Context after which the process is in the folder that it was in: simulators go where their files are."""
    before = os.getcwd()  # noqa: PTH109 - which may have been removed since
    try:
        yield
    finally:
        with suppress(OSError):
            os.chdir(before)


def in_thread(work: Callable[[], T], name: str) -> Future[T]:
    """Begin work on a thread that an exit does not wait for, as it does for those of an executor."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised by whoever asks for the result
            done.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return done


def processor_name(root: Path = Path("/")) -> str:
    """Return the model of the processor.

    Args:
        root: that /proc is looked up in.
    """
    try:
        lines = (root / "proc/cpuinfo").read_text().splitlines()
    except OSError:
        import subprocess

        with suppress(OSError):  # macOS has it; to Python all of Apple's are "arm"
            asked = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
            told = subprocess.run(asked, capture_output=True, text=True, check=False)
            return told.stdout.strip() or platform.processor()
        return platform.processor()
    facts = {x.strip(): y.strip() for x, _, y in (line.partition(":") for line in lines[::-1])}
    # Of ARM's the kernel tells numbers in place of a name.
    arm = (facts[x] for x in ("CPU implementer", "CPU part") if x in facts)
    return facts.get("model name") or " ".join([platform.machine(), *arm])


@dataclass(frozen=True)
class Machine:
    """Facts about a machine that a plan, and the last bits of sums, depend on."""

    cores: int
    """Cores that a process may compute on."""
    processor: str
    """Its model."""
    gpus: tuple[str, ...]
    """Their models."""
    bf16: tuple[str, ...]
    """Devices that compute in bfloat16 themselves."""
    torch: str
    """Version."""
    cpus: int = 0
    """Hardware threads that a process may use; 0: one for each core."""

    def share_of(self, cores: int) -> Machine:
        """Return a machine of so many of these cores, with their hardware threads."""
        return replace(self, cores=cores, cpus=cores * self.cpus // self.cores)


def this_machine() -> Machine:
    """Return what this process can compute with."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return Machine(
        cores=num_cores(),
        processor=processor_name(),
        gpus=tuple(torch.cuda.get_device_name(i) for i in range(count)),
        bf16=tuple(x for x in ("cpu", "cuda") if (x == "cpu" or count) and has_bf16(x)),
        torch=str(torch.__version__),
        cpus=num_cpus(),
    )


def free_memory(root: Path = Path("/")) -> int:
    """Return the bytes of memory that this process may still take: the machine's, or its container's.

    Args:
        root: that /proc and /sys are looked up in.
    """
    import psutil

    return min([psutil.virtual_memory().available, *_free_in_groups(root)])


def free_disk(path: Path) -> int:
    """Return the bytes free on the disk on which a path is, or would be."""
    return shutil.disk_usage(_there(path)).free


def disk_of(path: Path) -> int:
    """Return the number of the disk on which a path is, or would be."""
    return _there(path).stat().st_dev


def _there(path: Path) -> Path:
    path = expand(path).absolute()
    while not path.exists():
        path = path.parent
    return path


def _free_in_groups(root: Path) -> Iterator[int]:
    """Yield what is left of the limit of each control group that this process is in, of either version."""
    names = {
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        2: ("memory.max", "memory.current", "inactive_file"),
    }
    for folder, version in group_folders("memory", root):
        # No such file, or "max": no limit here.
        with suppress(OSError, ValueError):
            limit, used = (int((folder / name).read_text()) for name in names[version][:2])
            lines = (folder / "memory.stat").read_text().splitlines()
            stat = dict(line.split() for line in lines)
            # Pages of files that nobody uses make room when asked to.
            yield max(limit - used + int(stat.get(names[version][2], 0)), 0)


def has_bf16(device: str) -> bool:
    """Whether the hardware computes in bfloat16 itself; emulated it is slower than float32."""
    import torch

    if device == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, lambda: False)() for name in probes)


def use_threads(count: int) -> None:
    """Give this thread a number of torch threads; without the question the answer would not stick."""
    import torch

    torch.get_num_threads()
    torch.set_num_threads(count)


@contextmanager
def threads(count: int) -> Generator[None]:
    """Context that computes with a number of torch threads; asking first makes it stick in a new thread."""
    import torch

    before = torch.get_num_threads()
    if before != count:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if before != count:
            torch.set_num_threads(before)


def allow_open_files() -> None:
    """Let this process, and those it starts, hold as many files open as is usual on Linux: macOS begins with 256."""
    import resource

    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if most == resource.RLIM_INFINITY else min(OPEN_FILES, most)
    if limit != resource.RLIM_INFINITY and limit < wanted:
        with suppress(OSError):  # a sandbox's system may refuse
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def keep_freed_memory() -> None:
    """Let the C library keep what is freed instead of handing it back to the system, from now on.

    Call it before any simulator or thread is made: an arena that a thread has begun stays in use, and
    all but the main one give their memory back whatever is asked for.
    Every micro-batch on a CPU needs tens of megabytes, for some milliseconds. Given back and asked for
    again each time, their pages are zeroed by the system over and over: a fifth of the learner's time.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # not glibc
        return
    for option, value in MALLOC_OPTIONS.items():
        mallopt(option, value)
    if num_cores() <= FEW_CORES:  # only the main arena keeps large blocks
        mallopt(M_ARENA_MAX, 1)


def lower_priority(threads: Iterable[int] | None = None) -> None:
    """Let threads give way to the learner's: those given, or this one and those it starts.

    Simulators have many threads: left alone they crowd the learner out, then idle while it catches up.
    """
    if sys.platform != "linux":  # elsewhere a thread has no priority of its own to lower
        return
    for thread in [threading.get_native_id()] if threads is None else threads:
        with suppress(OSError):  # it has ended
            usual = os.getpriority(os.PRIO_PROCESS, thread)
            os.setpriority(os.PRIO_PROCESS, thread, max(usual, 10))  # root could also raise it


def native_threads() -> frozenset[int]:
    """Return the ids of this process's threads, C++ ones included; none where that cannot be known."""
    try:
        return frozenset(int(path.name) for path in Path("/proc/self/task").iterdir())
    except OSError:
        return frozenset()


def l2_cache_bytes(root: Path = Path("/")) -> int:
    """Return the size of a core's second-level cache; 0 where that cannot be known.

    Args:
        root: of the files in which the kernel tells it.
    """
    for index in (root / "sys/devices/system/cpu/cpu0/cache").glob("index*"):
        with suppress(OSError, ValueError):
            if (index / "level").read_text().strip() == "2":
                return 1024 * int((index / "size").read_text().strip().removesuffix("K"))
    return 0


class MissingExtra(ConfigError):
    """`what` needs packages that an extra of gossamer brings; tells the command that installs it."""

    def __init__(self, what: str, extra: str):
        super().__init__(f"{what}, which is not installed; type: {install_command(extra)}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Be a ConfigError in another process, such as that which handed out the work."""
        return ConfigError, self.args


def install_command(extra: str) -> str:
    """Return the command that installs an extra: into this Python, from a checkout where it is one."""
    python = shlex.quote(str(_shorten(Path(sys.executable).absolute())))
    home = Path(__file__).absolute().parents[2]
    if not (home / "constraints.txt").is_file():
        return f'{python} -m pip install "gossamer[{extra}]"'
    constraints = shlex.quote(str(_shorten(home / "constraints.txt")))
    return f'{python} -m pip install -c {constraints} -e "{_shorten(home)}[{extra}]"'


def _shorten(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def process_began() -> float:
    """Return when this process was started, in Unix time."""
    try:
        # The kernel counts ticks since boot; psutil adds them to a boot time in whole seconds.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        began = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - began)
    except (OSError, AttributeError, ValueError):
        import psutil

        return psutil.Process().create_time()
