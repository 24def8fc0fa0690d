"""Stack traces of each language as a state machine over kinds of lines. Data only.

A move names the next state, with ``+`` in front where the line starts an event; a kind without a
move continues the event in the same state. A reader may begin at any line, in ``unknown``, and must
find the same events as a reader from the beginning. So tables keep three rules, which
``tests/unit/agent/test_lines_presets.py`` checks:

1. After a line that starts an event the state depends on the kind of this line alone.
2. While one reader is in an event, another may start events that do not exist; but where the first
   starts an event, the other does too, with the same state.
3. A line that continues in ``unknown`` keeps the state ``unknown``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LOG, HEAD, FRAME, CAUSE, ERROR, INDENTED = "log", "head", "frame", "cause", "error", "indented"
TRACE, GROUP, CHAIN = "trace", "group", "chain"
OTHER = "other"
"""A line that matches no pattern."""
LEAD = "lead"
"""An OTHER line before a frame: the message of an exception."""
LEAD_LINES = 20
"""Most lines of an exception's message before its first frame."""
UNKNOWN = "unknown"

Moves = Mapping[str, Mapping[str, str]]
Kinds = tuple[tuple[str, str], ...]

_LEVELS = (
    "(?:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|SEVERE|CONFIG|FINE|FINER|FINEST|CRITICAL"
    r"|FATAL|ALERT|EMERG)(?:[\]):|>\s]|$)"
)
LOG_LINE = (
    r"^(?:[\[(<]{0,2}(?:"
    r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}[T ,:\]]"  # 2026-11-28 05:00:00
    r"|\d{1,2}[-/. ](?:\d{1,2}|[A-Z][a-z]{2})[-/. ]\d{2,4}[T ,:\]]"  # 28/Nov/2026:05:00:00
    r"|\d\d:\d\d:\d\d\b"
    r"|(?:[A-Z][a-z]{2} )?[A-Z][a-z]{2} [ \d]?\d,? [\d:]{4,8}\b"  # Nov 28, 2026 5:11:11 AM
    rf"|{_LEVELS})"
    rf"|\[[^\]]{{1,80}}\] {_LEVELS}"  # [main] INFO shop.Cart - started
    r"|[IWEFD]\d{4} \d\d:\d\d:\d\d"  # glog
    r"|[DIWEFAU], \[\d{4}-"  # Ruby
    r"|(?:ts|time|timestamp|level|lvl)=\S"  # logfmt
    r"|\S+ \S+ \S+ \[\d\d/[A-Z])"  # access logs
)
"""Matches the first line of an event in usual log formats."""
ISO_LOG_LINE = r"^\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?(?:\s|$)"
"""A cheaper pattern for LOG lines that match no earlier pattern in any preset."""


@dataclass(frozen=True)
class Traces:
    """The kinds of lines and the moves of a language. ``kinds``: patterns (RE2), of which the first
    match decides; a line with leading white space that matches no earlier one is INDENTED."""

    kinds: Kinds
    moves: Moves

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all kinds; the last two are OTHER and LEAD."""
        return (*dict.fromkeys(kind for kind, _ in self.kinds), OTHER, LEAD)

    @property
    def leads(self) -> bool:
        """Whether a line before a frame counts as LEAD."""
        return any(kind == FRAME for kind, _ in self.kinds)


def _frames(*, head: Mapping[str, str] | None = None, lead_in_frames: str = "+plain") -> Moves:
    """Return moves for log lines, exceptions with frames, and causes. ``head``: after a HEAD."""
    after = "open" if head is None else "head"
    starts = {LOG: "+open", HEAD: f"+{after}", LEAD: "+plain", OTHER: "+plain"}
    goes_on = {FRAME: "frames", CAUSE: "open", ERROR: "open"}
    moves: dict[str, Mapping[str, str]] = {
        UNKNOWN: {**starts, ERROR: "+open"},
        "open": {**starts, **goes_on, LEAD: "open"},
        "frames": {**starts, **goes_on, ERROR: "+open", LEAD: lead_in_frames},
        "plain": {**starts, **goes_on},
    }
    if head is not None:
        moves["head"] = {**starts, **goes_on, **head}
    return moves


_PYTHON: Moves = {
    UNKNOWN: {LOG: "+log", TRACE: "+trace", GROUP: "+ended", OTHER: "+plain"},
    "log": {LOG: "+log", TRACE: "log_trace", GROUP: "message", ERROR: "message", OTHER: "+plain"},
    "log_trace": {LOG: "+log", GROUP: "message", ERROR: "message", OTHER: "message"},
    # All up to the next line of the log is the message of the exception, or a note (PEP 678).
    "message": {LOG: "+log", TRACE: "log_trace"},
    "plain": {LOG: "+log", TRACE: "trace", GROUP: "ended", ERROR: "ended", OTHER: "+plain"},
    "trace": {LOG: "+log", GROUP: "ended", CHAIN: "plain", ERROR: "ended", OTHER: "plain"},
    "ended": {LOG: "+log", TRACE: "+trace", GROUP: "+ended", CHAIN: "plain", OTHER: "+plain"},
}

_SPACE = (INDENTED, r"^(?:[ \t]|\s*$)")

TRACES: Mapping[str, Traces] = {
    "java": Traces(
        (
            (FRAME, r"^\s+(?:at |\.\.\. \d+ )"),
            (CAUSE, r"^\s*(?:Caused by: |Suppressed: |Wrapped by: )"),
            _SPACE,
            (HEAD, r'^Exception in thread "|^Exception: .* thrown from the Uncaught'),
            (LOG, LOG_LINE),
            (
                ERROR,
                r"^(?:(?:[a-z_][\w$]*\.)+(?:[A-Z][\w$.]*)?(?:Exception|Error|Throwable|Failure)"
                r"|(?:[a-z_][\w$]*\.)*[A-Z]\w*\$[\w$]+)(?::|\s*$)",
            ),
        ),
        _frames(),
    ),
    "python": Traces(
        (
            (GROUP, r"^\s*\+ Exception Group Traceback \(most recent call last\):"),
            _SPACE,
            (TRACE, r"^Traceback \(most recent call last\):"),
            (
                CHAIN,
                r"^During handling of the above exception, another exception occurred:"
                r"|^The above exception was the direct cause of the following exception:",
            ),
            (LOG, LOG_LINE),
            (
                ERROR,
                r"^(?:(?:[A-Za-z_]\w*\.)+[A-Z]\w*"
                r"|[A-Z]\w*(?:Error|Exception|Warning|Group|Iteration)"
                r"|KeyboardInterrupt|SystemExit|GeneratorExit)(?::|\s*$)",
            ),
        ),
        _PYTHON,
    ),
    "go": Traces(
        (
            (
                FRAME,
                r"^\t.*\.(?:go|s|c):\d+|^goroutine \d+ .*\[.*\]:|^goroutine running on other thread"
                r"|^created by |^\[(?:signal |originating from )|^exit status \d+\s*$"
                r"|^\.\.\..*frames elided|^runtime stack:|^PC=0x|^r\w\w?\s+0x|^[cfg]s\s+0x"
                r"|^(?:[\w.%~-]+/)*[\w%~-]+\.\S*\(.*\)\s*$|^panic\(.*\)\s*$",
            ),
            _SPACE,
            (
                HEAD,
                r"^(?:panic|fatal error|SIG[A-Z]+): |^runtime: goroutine stack exceeds "
                r"|^unexpected fault address ",
            ),
            (CAUSE, r"^runtime: (?:sp=|g )"),
            (LOG, LOG_LINE),
        ),
        # A second head belongs to the first: a fatal error says more than one.
        _frames(head={HEAD: "head", CAUSE: "head", LEAD: "head"}, lead_in_frames="frames"),
    ),
    "dotnet": Traces(
        (
            (FRAME, r"^\s+at |^\s*--- End of "),
            (CAUSE, r"^\s*---> "),
            _SPACE,
            (HEAD, r"^Unhandled [Ee]xception[.:] "),
            (LOG, rf"{LOG_LINE}|^(?:trce|dbug|info|warn|fail|crit): "),
            (ERROR, r"^(?:[A-Za-z_]\w*\.)+\w*Exception(?: \(0x[0-9A-Fa-f]+\))?(?::|\s*$)"),
        ),
        _frames(),
    ),
    "ruby": Traces(((FRAME, r"^\s+from |^\S+:\d+:in [`']"), _SPACE, (LOG, LOG_LINE)), _frames()),
    "rust": Traces(
        (
            (FRAME, r"^(?:stack backtrace:|Stack backtrace:|note: )|^\s+\d+: |^\s+at "),
            (CAUSE, r"^(?:Caused by:|Location:)\s*$"),
            _SPACE,
            (HEAD, r"^thread '.*' (?:\(\d+\) )?(?:panicked at |has overflowed its stack)"),
            (LOG, LOG_LINE),
        ),
        # The line after a head is always the message.
        _frames(head={LEAD: "open", OTHER: "open"}),
    ),
}
