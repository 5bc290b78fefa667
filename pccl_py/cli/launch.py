"""Runs a command in place of this process, so that it dies when the parent process dies.

    python launch.py PARENT_PID PEER_ID COMMAND...

`pccl run` starts each of its processes through this file, by path, so that nothing of the package
is imported. Only the process itself can ask the kernel to be killed when its parent dies.
"""

import os
import signal
import sys

PR_SET_PDEATHSIG = 1
EXIT_NOT_FOUND = 127
EXIT_NOT_EXECUTABLE = 126


def die_with(parent: int) -> None:
    """Asks Linux for SIGKILL when the parent ends. On other systems only the parent sends it."""
    if sys.platform != "linux":
        return
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # the parent died before prctl
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Ties this process to its parent, sets the peer id, and runs the command."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C must not print a traceback of this file
    parent, peer_id, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    die_with(parent)
    if peer_id:  # exec keeps the process id, children get other ids
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
