"""Runs one command in place of this process, tied to its parent: if that dies, so does the command.

    python launch.py PARENT_PID PEER_ID COMMAND...

`pccl run` starts each of its processes through this file, by path, so that nothing of the package
is imported. It is a step of its own because only the process itself can ask the kernel for it.
"""

import os
import signal
import sys

PR_SET_PDEATHSIG = 1
EXIT_NOT_FOUND = 127
EXIT_NOT_EXECUTABLE = 126


def die_with(parent: int) -> None:
    """Linux: SIGKILL when the parent ends. Elsewhere the parent kills us, unless it is killed."""
    if sys.platform != "linux":
        return
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it died before we asked
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """See the head of this file."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a traceback of this file would help nobody
    parent, peer_id, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    die_with(parent)
    if peer_id:  # an exec keeps the process id, and children of the command have others
        os.environ["PCCL_PEER_ID"] = f"{peer_id}@{os.getpid()}"
    try:
        os.execvp(command[0], command)
    except FileNotFoundError:
        sys.stderr.write(f"{command[0]}: command not found\n")
        sys.exit(EXIT_NOT_FOUND)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        sys.exit(EXIT_NOT_EXECUTABLE)


if __name__ == "__main__":
    main()
