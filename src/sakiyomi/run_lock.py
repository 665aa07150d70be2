"""One writer a run folder. The system takes its lock back when its process is gone, however."""

import contextlib
import os
import sys
from pathlib import Path
from typing import IO

from sakiyomi.errors import StoreError, WriteError

LOCK_FILE = ".lock"
"""It holds the writer's process id, for people; the lock itself is the system's."""


class RunLock:
    """The right to write into a run folder; taken when made, given back by `release`.

    Raises StoreError when another process has it.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOCK_FILE
        self._file = self._open()
        while not self._is_current():  # its holder removed it between our two steps
            self._file.close()
            self._file = self._open()
        self._file.truncate(0)
        self._file.write(str(os.getpid()).encode())
        self._file.flush()

    def release(self) -> None:
        """Give it back; nothing of it stays in the folder."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
        self._file.close()

    def _open(self) -> IO[bytes]:
        try:
            file = self._path.open("a+b")
        except OSError as problem:
            raise WriteError(
                f"{self._path}: {problem.strerror}", "the run folder must be writable"
            ) from problem
        if _lock(file):
            return file
        with file:
            file.seek(0)
            owner = file.read().decode(errors="replace")
        raise StoreError(
            f"{self._path.parent}: another sakiyomi is writing this run (process {owner})",
            "wait for its end, or end it; then go on with: "
            f"sakiyomi run --resume {self._path.parent}",
        )

    def _is_current(self) -> bool:
        try:
            return os.path.samestat(self._path.stat(), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            return False


if sys.platform == "win32":
    import msvcrt

    def _lock(file: IO[bytes]) -> bool:
        """Lock a byte far behind the process id: others cannot read a locked one."""
        file.seek(1 << 30)
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        file.seek(0)
        return True

else:
    import fcntl

    def _lock(file: IO[bytes]) -> bool:
        """False when another process has the lock; a disk without locks guards nothing."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True
