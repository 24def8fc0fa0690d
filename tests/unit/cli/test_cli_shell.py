"""The shell, waiting, completion and top: on a fake store."""

from __future__ import annotations

import io
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from rich.console import Console

from cli import top
from cli.context import CliContext, ConnectionPool
from cli.main import tree as commands
from cli.prompt import TreeCompleter, ask, history
from cli.top_screen import View, picture
from flumeng.control.commands.flows import apply_flow, delete_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.queries.flow_rates import RateMeter
from flumeng.control.zookeeper import ABSENT, ANY, Store
from tests.testkit.cluster import add_journal, come_live, new_cluster
from tests.testkit.command_line import NOON, Reached, Shell
from tests.testkit.store import FakeStore
from zkschema import paths, records

FLOW = "flow: web\nsources: [tail: {paths: [/a]}]\nsinks: [noop]\n"
HOSTS = "zk:1/c"


@pytest.fixture
def store() -> FakeStore:
    """Flow web with one task on node n1, which is live and has not started it."""
    store = new_cluster()
    apply_flow(Operator(store, "a", "", NOON), FLOW)
    task = records.PlannedTask(
        kind="collect", node="n1", epoch=3, state="assigned", partitions=("web.n1.0.aa",)
    )
    store.write(paths.plan("web"), records.Plan(epoch=3, tasks={"collect.0": task}), ABSENT)
    store.write(paths.node("n1"), records.Node(uuid="u", roles=("collect",)), ABSENT)
    come_live(store, "n1", "n1:7", uuid="u")
    add_journal(store, "web.n1.0.aa")
    return store


def run_task(store: FakeStore) -> None:
    said = records.TaskStatus(epoch=3, revision=1, state="running")
    status = records.NodeStatus(assignment_version=0, tasks={"web/collect.0": said})
    store.write(paths.status("n1"), status, ANY)


# -- waiting


def test_waits_return_when_the_condition_holds(shell: Shell, store: FakeStore) -> None:
    shell.meanwhile = lambda: run_task(store) if shell.seconds > 5 else None
    assert shell.run("flow", "wait", "web", "--running", "--timeout", 30).exit_code == 0
    assert 5 < shell.seconds < 7
    for words in ((), ("web/collect.0",)):
        assert shell.run("task", "wait", *words, "--active").exit_code == 0
    assert shell.run("flow", "wait", "nope", "--gone").exit_code == 0
    assert shell.run("flow", "wait", "no name", "--gone").exit_code == 0


def test_flow_has_stopped_when_all_accepted_events_are_delivered(
    shell: Shell, store: FakeStore
) -> None:
    """Not already when its sources have and nothing is planned yet, as after a pause."""
    name = "web.n1.0.aa"
    wait = ("flow", "wait", "web", "--stopped", "--timeout", 1)
    store.write(paths.flow("web"), records.Flow(revision=1, state="stopped"), ANY)
    assert "- task web/collect.0 is starting" in shell.run(*wait).stderr
    store.write(paths.plan("web"), records.Plan(), ANY)
    assert f"- journal {name} is not fully collected yet\n" in shell.run(*wait).stderr
    found = store.read(paths.journal(name))
    assert found is not None
    store.write(paths.journal(name), replace(found.value, closed=True, end=7), ANY)
    assert f"- journal {name} is not fully collected yet\n" in shell.run(*wait).stderr
    store.write(paths.ack("web", "main", name), records.Ack(epoch=1, offset=7), ABSENT)
    assert shell.run(*wait).exit_code == 0


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        (("flow", "wait", "web", "--running"),
         "task web/collect.0 is starting: node n1 has not started it yet"),
        (("task", "wait", "--active"),
         "task web/collect.0 is starting: node n1 has not started it yet"),
        (("task", "wait", "web/x", "--active"), "task web/x is not planned yet"),
        (("flow", "wait", "web", "--stopped"), "flow web is set to running"),
        (("flow", "wait", "web", "--gone"), "flow web is set to running"),
    ],
)  # fmt: skip
def test_wait_that_times_out_lists_the_missing_conditions(
    shell: Shell, words: tuple[str, ...], missing: str
) -> None:
    result = shell.run(*words, "--timeout", 3)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"flumeng: not within 3 s; still missing:\n- {missing}\n"


def test_wait_for_a_deletion_names_the_unreadable_record_that_it_waits_for(
    shell: Shell, store: FakeStore
) -> None:
    delete_flow(Operator(store, "a", "", NOON), "web", discard=True)
    store.tree.znodes[str(paths.plan("web"))].data = b"edited by hand"
    result = shell.run("flow", "wait", "web", "--gone", "--timeout", 1)
    assert "- flow web is set to deleted, but /flows/web/plan: " in result.stderr


def test_task_with_an_old_revision_does_not_count_as_running(
    shell: Shell, store: FakeStore
) -> None:
    run_task(store)
    apply_flow(Operator(store, "a", "", NOON), FLOW + "#\n")
    result = shell.run("flow", "wait", "web", "--running", "--timeout", 1)
    assert "runs revision 1 instead of 2" in result.stderr


def test_flow_without_planned_tasks_does_not_count_as_running(
    shell: Shell, store: FakeStore
) -> None:
    store.write(paths.plan("web"), records.Plan(), ANY)
    for words in (("flow", "wait", "web", "--running"), ("task", "wait", "--active")):
        assert shell.run(*words, "--timeout", 1).exit_code == 1


def test_impossible_wait_is_wrong_input(shell: Shell) -> None:
    assert shell.run("flow", "wait", "web").exit_code == 2
    assert shell.run("task", "wait").exit_code == 2
    assert shell.run("flow", "wait", "wbe", "--running").exit_code == 2


# -- scripts


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        (tmp_path / "script").write_text(text)
        return tmp_path / "script"

    return write


def test_commands_run_in_order_over_one_connection(shell: Shell, store: FakeStore) -> None:
    sessions = []
    connect = shell.connect
    shell.connect = lambda hosts: sessions.append(hosts) or connect(hosts)  # type: ignore[method-assign,func-returns-value]
    result = shell.run(
        "shell", "-c", "flow pause web --reason 'two words' # why", "-c", "", "-c", "flow list"
    )
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[-1].startswith("web\tsuspended\t")
    assert sessions == [HOSTS]
    assert store.tree.stores == [store], "the connection is closed at the end"
    (*_, entry) = [store.read(paths.audit(name)) for name in store.children(paths.audits())]
    assert {e.value.reason for e in [entry] if e} <= {"two words", ""}


@pytest.mark.parametrize(
    ("line", "code"),
    [("flow show nope", 2), ("flow pause web --if-revision 9", 3), ("schema verify", 1),
     ("flow pause 'web", 2), ("flwo", 2), ("shell", 2), ("flow wait web --gone --timeout 1", 1)],
)  # fmt: skip
def test_a_script_stops_at_the_first_failure_with_its_exit_code(
    shell: Shell, store: FakeStore, script: Callable[[str], Path], line: str, code: int
) -> None:
    store.write(paths.ack("web", "main", "orphan"), records.Ack(epoch=1, offset=1), ABSENT)
    file = script(f"# first\nflow list\n\n{line}\nflow stop web\n")
    result = shell.run("shell", file)
    assert result.exit_code == code
    assert result.stderr.splitlines()[-1] == f"flumeng: {file}:4: stopped, exit code {code}"
    flow = store.read(paths.flow("web"))
    assert flow is not None
    assert flow.value.state == "running", "a later line ran"


def test_commands_come_from_standard_input_without_a_terminal(shell: Shell) -> None:
    done = shell.run("shell", typed="flow stop web\nexit\nflow resume web\n")
    assert (done.exit_code, done.stdout) == (
        0, "flow web: its sources stop now, its journals are fully collected\n",
    )  # fmt: skip
    failed = shell.run("shell", typed="flow show nope\n")
    assert "standard input:1: stopped, exit code 2" in failed.stderr


def test_unreadable_script_runs_nothing(shell: Shell, store: FakeStore) -> None:
    result = shell.run("shell", "-c", "flow stop web", "/nowhere")
    assert (result.exit_code, "/nowhere" in result.stderr) == (2, True)
    flow = store.read(paths.flow("web"))
    assert flow is not None
    assert flow.value.state == "running"


def test_cluster_named_once_applies_to_all_commands_of_a_shell(shell: Shell) -> None:
    result = shell.run("shell", "--zk", "other:1/c", "-c", "flow list", zk=None)
    assert result.exit_code == 0
    shell.cut = True
    assert shell.run("shell", "--zk", "other:1/c", "-c", "flow list", zk=None).exit_code == 4


# -- completion


@contextmanager
def pool(context: CliContext) -> Iterator[CliContext]:
    with closing(ConnectionPool(context.connect)) as connections:
        yield replace(context, pool=connections)


def completions(completer: TreeCompleter, text: str) -> list[str]:
    found = completer.get_completions(Document(text), CompleteEvent())
    return [completion.text for completion in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("flow pa", ["pause"]),
        ("flow show ", ["web"]),
        ("flow show x", []),
        ("node drain ", ["n1"]),
        ("task show we", ["web/collect.0"]),
        ("task wait --active web/collect.0 ", ["web/collect.0"]),
        ("flow pause web --rea", ["--reason"]),
        ("flow pause 'we", []),
    ],
)
def test_commands_options_and_names_are_completed(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, text: str, expected: list[str]
) -> None:
    monkeypatch.setenv("FLUMENG_ZK", HOSTS)
    with pool(shell.context()) as context:
        context.look_up(HOSTS)
        assert context.pool is not None
        context.pool.lookup(HOSTS).wait(60)
        assert completions(TreeCompleter(commands, context), text) == expected


def test_files_are_completed(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "web.yaml").touch()
    with pool(shell.context()) as context:
        found = completions(TreeCompleter(commands, context), f"flow apply {tmp_path}/w")
    assert found == ["eb.yaml"]


@pytest.mark.slow
@pytest.mark.parametrize("keep", [True, False], ids=["in the shell", "in bash"])
def test_completion_does_not_wait_for_an_absent_zookeeper(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    monkeypatch.setenv("FLUMENG_ZK", HOSTS)
    back = threading.Event()

    def hang(hosts: str) -> Store:
        back.wait(60)
        return Shell.connect(shell, hosts)

    context = replace(shell.context(), connect=hang)
    with ExitStack() as stack:
        stack.callback(back.set)
        if keep:
            context = stack.enter_context(pool(context))
            context.look_up(HOSTS)
        start = time.monotonic()
        found = ShellComplete(commands, {"obj": context}, "flumeng", "").get_completions(
            ["flow", "show"], ""
        )
        assert found == []
        assert time.monotonic() - start < 30
    shell.cut = True
    complete = ShellComplete(commands, {"obj": shell.context()}, "flumeng", "")
    assert complete.get_completions(["flow", "show"], "") == []


def test_the_prompt_gives_lines_and_remembers_them(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FLUMENG_ZK", HOSTS)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with (
        create_pipe_input() as typed,
        create_app_session(input=typed, output=DummyOutput()),
        pool(shell.context()) as context,
    ):
        typed.send_text("flow list\nflow sh\x03\x04")
        assert list(ask(commands, context)) == ["flow list"]
    assert list(history().load_history_strings()) == ["flow list"]
    assert (tmp_path / "flumeng" / "history").stat().st_mode & 0o077 == 0


def test_unwritable_home_keeps_no_history(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    monkeypatch.delenv("FLUMENG_ZK", raising=False)
    with (
        create_pipe_input() as typed,
        create_app_session(input=typed, output=DummyOutput()),
        pool(shell.context()) as context,
    ):
        typed.send_text("flow list\n\x04")
        assert list(ask(commands, context)) == ["flow list"]
    assert os.listdir(tmp_path) == ["file"]  # noqa: PTH208  names only


# -- top


def test_top_prints_once_in_a_pipe(shell: Shell, store: FakeStore) -> None:
    run_task(store)
    shell.positions["n1:7"] = {"web.n1.0.aa": Reached(floor=0, safe=100)}
    store.write(paths.ack("web", "main", "web.n1.0.aa"), records.Ack(epoch=3, offset=40), ABSENT)
    shown = shell.run("top")
    assert (shown.exit_code, shown.stdout.splitlines()) == (
        0,
        [
            "degraded: 0 masters, 1 of 1 nodes live, 1 problem",
            "PROBLEM\tADVICE",
            "no master is live: nothing is planned or moved\tstart `flumeng master`",
            "FLOW\tSTATE\tREVISION\tRUNNING\tLAG\tIN/S\tOUT/S\tDROPPED/S\tDEAD/S",
            "web\trunning\t1\t1/1\t60, 60 s\t-\t-\t-\t-",
            "NODE\tLIVE\tDESIRED\tTASKS\tNOT RUNNING",
            "n1\tyes\tactive\t1\t0",
        ],
    )
    assert shell.json("top")["node_rows"][0]["node"] == "n1"


def test_top_continues_without_zookeeper_until_ctrl_c(
    shell: Shell,
    store: FakeStore,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    looks = iter(["cut", "heal", "end"])

    def wait(seconds: float) -> str:
        shell.sleep(seconds)
        step = next(looks)
        if step == "end":
            raise KeyboardInterrupt
        store.connected = step == "heal"
        return ""

    top.live(shell.context(), store, wait)
    assert list(looks) == []
    shown = capsys.readouterr().out
    assert shown.count("1 of 1 nodes live") == 2
    assert "no connection to ZooKeeper now" in shown


def test_shell_accepts_lines_that_begin_with_flumeng_and_help(shell: Shell) -> None:
    pasted = shell.run("shell", "-c", "flumeng flow list", "-c", "help", "-c", "help flow wait")
    assert pasted.exit_code == 0, pasted.stderr
    assert pasted.stdout.startswith("FLOW\tSTATE")
    assert "Run commands at a prompt" in pasted.stdout
    assert "Usage: flumeng flow wait" in pasted.stdout
    again = shell.run("shell", "-c", "flumeng shell")
    assert (again.exit_code, "this is the shell already" in again.stderr) == (2, True)


def test_top_shows_the_worst_of_very_many_nodes_and_counts_the_others(
    shell: Shell, store: FakeStore
) -> None:
    for number in range(100):
        node = records.Node(uuid=str(number), roles=("ingest",))
        store.write(paths.node(f"m{number:03}"), node, ABSENT)
        if number != 77:
            come_live(store, f"m{number:03}", uuid="u")
    seen = top.read_cluster(shell.context(), store, RateMeter(), View())
    console = Console(width=120, height=40, file=io.StringIO())
    console.print(picture(seen, View(), 40))
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert len(shown.splitlines()) <= 40
    assert "node m077 is not live" in shown
    assert shown.index(" m077 ") < shown.index(" m000 ")
    assert "and 91 more" in shown
