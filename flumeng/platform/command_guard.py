"""``python -I -S command_guard.py COMMAND...``: runs a command in a process group that ends with
its parent. Started as the leader of a new session, with a pipe as standard input. When the pipe
ends, the group gets SIGTERM, and SIGKILL after the command has ended or TERM_SECONDS. When the
command ends first, the rest of the group gets SIGTERM. The guard exits with the command's status,
128 plus the signal that ended it, or 127 when it cannot be started."""

import os
import select
import signal
import sys

TERM_SECONDS = 2.0


def main() -> int:
    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        child = os.posix_spawn(
            sys.argv[1],
            sys.argv[1:],
            os.environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, nothing, 0)],
            setsigdef=[signal.SIGTERM, signal.SIGPIPE],
        )
    except OSError as error:
        print(error.strerror, file=sys.stderr)
        return 127
    for output in (1, 2):
        os.dup2(nothing, output)
    while True:
        ready, _, _ = select.select([0, woken], [], [])
        if 0 in ready:
            os.killpg(0, signal.SIGTERM)
            select.select([woken], [], [], TERM_SECONDS)
            os.killpg(0, signal.SIGKILL)
        os.read(woken, 64)
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            os.killpg(0, signal.SIGTERM)
            return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
