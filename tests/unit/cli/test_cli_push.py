"""``flumeng push`` on fake sites in which masters obey at once."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from flumeng.control.commands.flows import apply_flow, set_flow_state
from flumeng.control.commands.operator import Operator
from flumeng.control.commands.settings import begin_maintenance, set_choke, set_setting
from flumeng.control.commands.sites import name_cluster
from flumeng.control.zookeeper import ABSENT, ANY
from flumeng.platform import processes
from tests.testkit.command_line import Shell
from tests.testkit.sites import NOON, FakeSites
from tests.testkit.store import FakeStore
from zkschema import paths
from zkschema.records import Lease, Link, Push, PushClaim

WEB = "flow: web\nsources: [tail: {paths: [/var/log/web.log]}]\nsinks: [noop]\n"
SITES = """
inventory: test
sites:
  s0: {zookeeper: "s0:1/c"}
  s1: {zookeeper: "s1:1/c"}
  s2: {zookeeper: "s2:1/c"}
waves:
  - {wave: canary, sites: [s0]}
  - {wave: rest, rest: true, parallel: all}
"""
Run = Callable[..., Result]


class Pushing:
    """An inventory, fake sites, and a shell that pushes the one to the others."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.sites = FakeSites(3)
        trees = {f"{name}:1/c": tree for name, tree in self.sites.trees.items()}
        self.shell = Shell(self.sites.trees["s0"], trees=trees, meanwhile=self.sites.obey_all)
        self.write("sites.yaml", SITES)
        self.write("base/flows/web.yaml", WEB)

    def write(self, name: str, text: str) -> None:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run(self, *words: object, typed: str | None = None) -> Result:
        self.sites.obey_all()
        return self.shell.run("push", *words, "--inventory", self.directory, typed=typed)

    def applied(self, *words: object) -> Result:
        done = self.run("apply", "--yes", *words)
        assert done.exit_code == 0, (done.stdout, done.stderr)
        return done

    def flow(self, site: str, name: str = "web") -> str | None:
        store = self.sites.store(site)
        flow = store.read(paths.flow(name))
        if flow is None or flow.value.state == "deleted":
            return None
        text = store.read(paths.revision(name, str(flow.value.revision)))
        return text.value.text if text else None

    def by_hand(self, site: str, text: str) -> None:
        apply_flow(Operator(self.sites.store(site), "hand", "", NOON), text)

    def audits(self, site: str) -> list[str]:
        store = self.sites.store(site)
        entries = store.read_many([paths.audit(name) for name in store.children(paths.audits())])
        return [entry.value.command for entry in entries if entry]


@pytest.fixture
def pushing(tmp_path: Path) -> Pushing:
    return Pushing(tmp_path / "inventory")


def test_applied_plan_leaves_nothing_to_do(pushing: Pushing) -> None:
    planned = pushing.run("plan")
    assert planned.exit_code == 5, planned.stderr
    assert "sites s0, s1, s2 (3):\n  + flow/web" in planned.stdout
    assert "3 sites: 3 to make; 0 unchanged" in planned.stdout
    assert pushing.flow("s0") is None, "a plan changes nothing"
    done = pushing.applied("--reason", "first")
    assert "wave canary begins" in done.stderr
    assert "site s2: soaking -> done" in done.stderr
    assert [pushing.flow(site) for site in ("s0", "s1", "s2")] == [WEB] * 3
    assert pushing.run("plan").exit_code == 0
    again = pushing.run("apply", "--yes")
    assert (again.exit_code, pushing.run("history", "--json").stdout.count('"push"')) == (0, 1)
    (told,) = (one for one in pushing.audits("s1") if one.startswith("push apply"))
    assert "inventory test" in told
    assert "make flow/web" in told


def test_broken_flow_in_the_canary_stops_the_push_there(pushing: Pushing) -> None:
    pushing.applied()
    pushing.write("base/flows/web.yaml", WEB + "# 2\n")
    pushing.sites.broken["s0"].add(WEB + "# 2\n")
    stopped = pushing.run("apply", "--yes")
    assert stopped.exit_code == 1
    assert "the push has failed in wave canary" in stopped.stdout
    assert [pushing.flow(site) for site in ("s1", "s2")] == [WEB, WEB]
    assert pushing.flow("s0") == WEB + "# 2\n"
    unproven = pushing.run("plan")
    assert "s0:\n  ! push" in unproven.stdout
    again = pushing.run("apply", "--yes")
    assert (again.exit_code, pushing.flow("s1")) == (1, WEB), "it is not taken for well now"
    assert pushing.run("rollback", "--yes").exit_code == 0
    assert pushing.flow("s0") == WEB
    assert pushing.run("rollback", "--yes").stdout.endswith("done\n"), "it is not undone itself"
    assert pushing.flow("s0") == WEB


def test_failed_wave_is_rolled_back(pushing: Pushing) -> None:
    pushing.applied()
    pushing.write("base/flows/web.yaml", WEB + "# 2\n")
    pushing.sites.broken["s2"].add(WEB + "# 2\n")
    back = pushing.run("apply", "--yes", "--on-failure", "rollback")
    assert back.exit_code == 1
    assert "rolled back" in back.stdout
    assert [pushing.flow(site) for site in ("s0", "s1", "s2")] == [WEB] * 3


@pytest.mark.slow
def test_history_lists_a_push_before_its_rollback(pushing: Pushing) -> None:
    """Both are of the same second."""
    pushing.applied()
    for number in range(4):
        broken = WEB + f"# {number}\n"
        pushing.write("base/flows/web.yaml", broken)
        pushing.sites.broken["s0"].add(broken)
        pushing.run("apply", "--yes", "--on-failure", "rollback")
    rows = json.loads(pushing.run("history", "--json").stdout)
    assert [row["verb"] for row in rows] == ["apply", *["apply", "rollback"] * 4]


def test_drift_is_shown_and_kept_or_overwritten_as_requested(pushing: Pushing) -> None:
    pushing.applied()
    assert pushing.run("drift").exit_code == 0
    pushing.by_hand("s1", WEB + "# by hand\n")
    shown = pushing.run("drift")
    assert (shown.exit_code, "+# by hand" in shown.stdout) == (3, True)
    assert pushing.run("plan").exit_code == 3
    refused = pushing.run("apply", "--yes")
    assert (refused.exit_code, "changed by hand" in refused.stderr) == (3, True)
    pushing.write("base/flows/web.yaml", WEB + "# 2\n")
    pushing.applied("--drift", "keep")
    assert pushing.flow("s1") == WEB + "# by hand\n"
    assert pushing.flow("s0") == WEB + "# 2\n"
    pushing.applied("--drift", "overwrite")
    assert pushing.flow("s1") == WEB + "# 2\n"
    assert pushing.run("plan").exit_code == 0


def test_plan_ends_with_3_for_drift_of_a_flow_that_left_the_inventory(pushing: Pushing) -> None:
    """The push would leave the flow alone, so that it does not refuse it."""
    pushing.applied()
    pushing.by_hand("s1", WEB + "# by hand\n")
    (pushing.directory / "base/flows/web.yaml").unlink()
    pushing.write("base/cluster.yaml", "settings: {grace_seconds: 3}\n")
    assert pushing.run("plan").exit_code == 3
    assert pushing.run("plan", "--drift", "keep").exit_code == 5


def test_foreign_flow_is_adopted_first_and_pruned_only_on_request(pushing: Pushing) -> None:
    pushing.by_hand("s1", WEB + "# mine\n")
    refused = pushing.run("apply", "--yes")
    assert (refused.exit_code, "flumeng push adopt" in refused.stderr) == (3, True)
    assert pushing.flow("s0") is None, "nothing is changed anywhere"
    adopted = pushing.run("adopt", "s1")
    assert adopted.stdout == "site s1: flow/web is managed by pushes now\n", adopted.stderr
    pushing.applied()
    assert pushing.flow("s1") == WEB
    (pushing.directory / "base/flows/web.yaml").unlink()
    pushing.write("base/cluster.yaml", "settings: {grace_seconds: 3}\n")
    kept = pushing.applied()
    assert "--prune deletes it" in kept.stdout
    assert pushing.flow("s1") == WEB
    pushing.applied("--prune")
    assert [pushing.flow(site) for site in ("s0", "s1", "s2")] == [None] * 3
    assert pushing.run("rollback", "--yes").exit_code == 0
    assert [pushing.flow(site) for site in ("s0", "s1", "s2")] == [WEB] * 3


def test_rolled_back_adoption_leaves_the_flow_as_it_is(pushing: Pushing) -> None:
    pushing.by_hand("s1", WEB + "# mine\n")
    pushing.run("adopt", "s1")
    assert pushing.run("rollback", "--yes").exit_code == 0
    assert pushing.flow("s1") == WEB + "# mine\n"
    assert pushing.run("apply", "--yes").exit_code == 3, "it is under the inventory still"


def test_chokes_of_a_flow_are_removed_and_restored_with_it(pushing: Pushing) -> None:
    """Also one that somebody has set by hand."""
    pushing.applied()
    store = pushing.sites.store("s1")
    set_choke(Operator(store, "hand", "", NOON), "web", 5000.0, None)
    (pushing.directory / "base/flows/web.yaml").unlink()
    pushing.write("base/cluster.yaml", "settings: {grace_seconds: 3}\n")
    assert "- choke/web: 5000 -> unset" in pushing.applied("--prune").stdout
    assert chokes_of(store) == {}
    assert pushing.run("rollback", "--yes").exit_code == 0
    assert (pushing.flow("s1"), chokes_of(store)) == (WEB, {"web": 5000.0})


def chokes_of(store: FakeStore) -> Mapping[str, float]:
    cluster = store.read(paths.cluster())
    assert cluster is not None
    return cluster.value.chokes


def test_stored_plan_is_applied_or_reports_the_changes_since(
    pushing: Pushing, tmp_path: Path
) -> None:
    kept = tmp_path / "plan.json"
    assert pushing.run("plan", "--out", kept).exit_code == 5
    assert kept.stat().st_mode & 0o077 == 0
    set_setting(Operator(pushing.sites.store("s1"), "hand", "", NOON), "grace_seconds", "9")
    pushing.applied("--plan", kept)
    assert pushing.flow("s2") == WEB
    moved = pushing.run("apply", "--yes", "--plan", kept)
    assert (moved.exit_code, "site s0: flow/web was changed" in moved.stderr) == (3, True)
    pushing.write("base/flows/web.yaml", WEB + "# 2\n")
    other = pushing.run("apply", "--yes", "--plan", kept)
    assert (other.exit_code, "make a new plan" in other.stderr) == (3, True)
    kept.write_text("{}")
    assert pushing.run("apply", "--yes", "--plan", kept).exit_code == 2


@pytest.mark.parametrize("more", [("--only", "s0"), ("--prune",), ("--drift", "keep")])
def test_options_already_in_a_stored_plan_are_refused(
    pushing: Pushing, tmp_path: Path, more: tuple[str, ...]
) -> None:
    kept = tmp_path / "plan.json"
    pushing.run("plan", "--out", kept)
    refused = pushing.run("apply", "--yes", "--plan", kept, *more)
    assert (refused.exit_code, more[0] in refused.stderr) == (2, True), refused.stderr
    assert [pushing.flow(site) for site in ("s0", "s1")] == [None, None]


@pytest.mark.parametrize(
    "damage",
    [
        lambda plan: plan | {"sites": {}},
        lambda plan: plan | {"drift_policy": "whatever"},
        lambda plan: plan | {"prune": "false"},
        lambda plan: plan["sites"]["s0"]["changes"][0].update(key=3) or plan,
    ],
)
def test_damaged_plan_is_reported(
    pushing: Pushing, tmp_path: Path, damage: Callable[[Any], object]
) -> None:
    kept = tmp_path / "plan.json"
    pushing.run("plan", "--out", kept)
    kept.write_text(json.dumps(damage(json.loads(kept.read_text()))))
    refused = pushing.run("apply", "--yes", "--plan", kept)
    assert (refused.exit_code, "the plan is damaged" in refused.stderr) == (2, True), refused.stderr
    assert pushing.flow("s0") is None


def test_plan_file_is_private_also_when_the_file_existed(pushing: Pushing, tmp_path: Path) -> None:
    kept = tmp_path / "plan.json"
    kept.touch(mode=0o644)
    assert pushing.run("plan", "--out", kept).exit_code == 5
    assert kept.stat().st_mode & 0o077 == 0


def test_claim_of_another_push_refuses_an_apply_until_it_is_taken_over(pushing: Pushing) -> None:
    claim = PushClaim(who="bob@ops", push="p", boot="elsewhere", pid=7, since=NOON)
    pushing.sites.store("s2").write(paths.push(), Push(claim=claim), ABSENT)
    refused = pushing.run("apply", "--yes")
    assert refused.exit_code == 3
    assert "site s2: bob@ops pushes p (process 7" in refused.stderr
    assert "--take-over" in refused.stderr
    assert pushing.flow("s0") is None
    assert pushing.run("status", "--json").stdout.count("bob@ops") == 1
    pushing.applied("--take-over")
    found = pushing.sites.store("s2").read(paths.push())
    assert found is not None
    assert found.value.claim is None


def test_status_omits_the_claim_of_a_process_that_has_ended(pushing: Pushing) -> None:
    claim = PushClaim(
        who="bob@ops", push="p", boot=processes.boot(), pid=os.getpid(), since=NOON
    )  # our number: a process before us had it
    pushing.sites.store("s2").write(paths.push(), Push(claim=claim), ABSENT)
    assert "bob@ops" not in pushing.run("status", "--json").stdout


def test_unreachable_site_fails_its_wave_and_is_completed_later(pushing: Pushing) -> None:
    pushing.shell.away.add("s1:1/c")
    planned = pushing.run("plan")
    assert planned.exit_code == 1
    assert "site s1:\n  ! cannot be pushed to: ZooKeeper at s1:1/c did not answer" in planned.stdout
    failed = pushing.run("apply", "--yes")
    assert (failed.exit_code, pushing.flow("s0"), pushing.flow("s2")) == (1, WEB, WEB)
    pushing.shell.away.clear()
    pushing.applied()
    assert pushing.flow("s1") == WEB


def test_status_shows_sites_and_flows(pushing: Pushing) -> None:
    pushing.applied()
    pushing.by_hand("s1", WEB + "# by hand\n")
    shown = pushing.run("status")
    assert "web\t1\t2 (drift)\t1" in shown.stdout, shown.stdout
    rows = json.loads(pushing.run("status", "--json").stdout)
    assert [row["behind"] for row in rows] == [0, 1, 0]
    assert rows[1]["drift"] == ["flow/web"]
    assert rows[0]["push"] == rows[2]["push"] != ""


def test_site_whose_window_is_shut_is_left_for_later(pushing: Pushing) -> None:
    """It is Tuesday, 22:13 in UTC."""
    shut = 'parallel: all, windows: ["wed 01:00-02:00"]'
    pushing.write("sites.yaml", SITES.replace("parallel: all", shut))
    waits = pushing.run("apply", "--yes")
    assert (waits.exit_code, pushing.flow("s0"), pushing.flow("s1")) == (1, WEB, None)
    assert "s1\tits window is shut\topens 2023-11-15 01:00 (UTC)" in waits.stdout
    assert "the push waits for a window in wave rest" in waits.stdout


def test_plan_mentions_maintenance(pushing: Pushing) -> None:
    begin_maintenance(Operator(pushing.sites.store("s1"), "ann", "a new switch", NOON))
    planned = pushing.run("plan")
    assert planned.exit_code == 1
    assert "cannot be pushed to: maintenance mode, by ann: a new switch" in planned.stdout


def test_flow_that_rolled_back_by_itself_is_not_drift(pushing: Pushing) -> None:
    pushing.applied()
    pushing.write("base/flows/web.yaml", WEB + "# 2\n")
    pushing.applied()
    store = pushing.sites.store("s1")
    flow = store.read(paths.flow("web"))
    assert flow is not None
    back = replace(flow.value, revision=1, went_back="a task failed")
    store.write(paths.flow("web"), back, flow.version)
    assert pushing.run("drift").exit_code == 0
    assert pushing.run("plan").exit_code == 5
    aborted = replace(back, went_back="aborted by bob")
    store.write(paths.flow("web"), aborted, ANY)
    assert pushing.run("plan").exit_code == 3, "that was by hand"
    store.write(paths.flow("web"), back, ANY)
    pushing.write("base/flows/web.yaml", WEB + "# 3\n")
    pushing.applied()
    assert pushing.flow("s1") == WEB + "# 3\n"


@pytest.mark.parametrize("known", [WEB, WEB + "# 2\n"], ids=["pushed again", "pushed once"])
@pytest.mark.parametrize("why", ["a task failed", "aborted by bob"])
def test_push_of_the_running_text_ends_the_rolled_back_state(
    pushing: Pushing, known: str, why: str
) -> None:
    """As ``flow apply`` of that text does, for a text of an earlier push and for the failed one."""
    pushing.applied()
    if known != WEB:
        pushing.write("base/flows/web.yaml", known)
        pushing.applied()
        pushing.write("base/flows/web.yaml", WEB)
    for site in pushing.sites.trees:
        store = pushing.sites.store(site)
        flow = store.read(paths.flow("web"))
        assert flow is not None
        store.write(paths.flow("web"), replace(flow.value, revision=1, went_back=why), ANY)
    done = pushing.applied()
    for site in pushing.sites.trees:
        flow = pushing.sites.store(site).read(paths.flow("web"))
        assert flow is not None
        assert (flow.value.revision, flow.value.went_back) == (1, ""), done.output
    assert pushing.run("plan").exit_code == 0, "and nothing is left to do"


def test_suspended_flow_is_reported_as_not_verified(pushing: Pushing) -> None:
    pushing.applied()
    set_flow_state(Operator(pushing.sites.store("s1"), "ann", "", NOON), "web", "suspended")
    pushing.write("base/flows/web.yaml", WEB + "# 2\n")
    told = pushing.applied().stderr
    assert "site s1: flow web is suspended: the push cannot see it run" in told


def test_history_reports_damaged_entries(pushing: Pushing) -> None:
    pushing.applied()
    pushing.sites.trees["s1"].znodes[f"{paths.push()}/{0:010d}"].data = b"damaged"
    told = pushing.run("history", "s1")
    assert (told.exit_code, told.stdout.count("\n")) == (1, 1)
    assert "site s1: older pushes cannot be read: /push/0000000000: " in told.stderr


@pytest.mark.parametrize("words", ["plan", "render s1", "status", "drift", "history"])
def test_reading_command_changes_nothing(pushing: Pushing, words: str) -> None:
    pushing.applied()
    pushing.by_hand("s1", WEB + "# by hand\n")
    pushing.sites.obey_all()
    before = [pushing.sites.store(name).dump() for name in pushing.sites.trees]
    pushing.shell.run("push", *words.split(), "--inventory", pushing.directory)
    assert [pushing.sites.store(name).dump() for name in pushing.sites.trees] == before


def test_apply_asks_before_it_begins(pushing: Pushing) -> None:
    refused = pushing.run("apply", typed="n\n")
    assert (refused.exit_code, pushing.flow("s0")) == (1, None)
    assert pushing.run("apply", typed="y\n").exit_code == 0
    assert pushing.flow("s2") == WEB


def test_rollback_to_an_older_push(pushing: Pushing) -> None:
    pushing.applied()
    first = json.loads(pushing.run("history", "--json").stdout)[0]["push"]
    for number in (2, 3):
        pushing.write("base/flows/web.yaml", f"{WEB}# {number}\n")
        pushing.applied()
    assert pushing.run("rollback", "--yes", "--to", "nonsense").exit_code == 2
    assert pushing.run("rollback", "--yes", "--to", first).exit_code == 0
    assert [pushing.flow(site) for site in ("s0", "s1", "s2")] == [WEB] * 3
    rows = json.loads(pushing.run("history", "s1", "--json").stdout)
    assert [row["verb"] for row in rows] == ["apply"] * 3 + ["rollback"]


def test_rollback_to_an_older_push_restores_sites_it_had_not_changed(pushing: Pushing) -> None:
    pushing.applied("--only", "s0", "--only", "s1")
    first = WEB + "# 2\n"
    pushing.write("sites/s0/flows/web.yaml", "flow: web\nbatch: {seconds: 2}\n")
    pushing.applied("--only", "s0")
    at_second = pushing.flow("s0")
    second = json.loads(pushing.run("history", "--json").stdout)[-1]["push"]
    pushing.write("base/flows/web.yaml", first)
    pushing.applied()
    assert pushing.flow("s2") == first
    back = pushing.run("rollback", "--yes", "--to", second)
    assert back.exit_code == 0, back.output
    assert [pushing.flow(site) for site in ("s0", "s1", "s2")] == [at_second, WEB, None]


def test_exported_inventory_of_running_sites_leaves_nothing_to_do(
    pushing: Pushing, tmp_path: Path
) -> None:
    pushing.by_hand("s0", WEB)
    pushing.by_hand("s1", WEB + "# other ${x}\n")
    set_setting(Operator(pushing.sites.store("s1"), "hand", "", NOON), "grace_seconds", "9")
    made = tmp_path / "made"
    clusters = [word for n in range(3) for word in ("--cluster", f"s{n}=s{n}:1/c")]
    exported = pushing.shell.run("push", "export", made, *clusters)
    assert exported.exit_code == 0, exported.stderr
    planned = pushing.shell.run("push", "plan", "--inventory", made, "--json")
    sites = json.loads(planned.stdout)["sites"]
    verbs = {change["verb"] for site in sites.values() for change in site["changes"]}
    assert (planned.exit_code, verbs) == (5, {"take"})
    again = pushing.shell.run("push", "export", made, *clusters)
    assert again.exit_code == 2


def test_export_reports_the_flows_it_leaves_out(pushing: Pushing, tmp_path: Path) -> None:
    pushing.by_hand("s0", WEB)
    pushing.by_hand("s0", WEB.replace("web", "other"))
    znodes = pushing.sites.trees["s0"].znodes
    znodes["/flows/web"] = replace(znodes["/flows/web"], data=b"damaged")
    exported = pushing.shell.run("push", "export", tmp_path / "made", "--cluster", "s0=s0:1/c")
    assert (exported.exit_code, "site s0: flow/web is left out: " in exported.stderr) == (1, True)
    assert (tmp_path / "made/base/flows/other.yaml").read_text() == WEB.replace("web", "other")


def test_export_of_an_invalid_site_is_refused(pushing: Pushing, tmp_path: Path) -> None:
    for cluster, said in (
        ("../s0=s0:1/c", "expected 1 to 63 small letters"),
        ("s0=s0", "expected host:port"),
        ("s0", "is not SITE=HOST:PORT/CHROOT"),
    ):
        refused = pushing.shell.run("push", "export", tmp_path / "made", "--cluster", cluster)
        assert (refused.exit_code, said in refused.stderr) == (2, True), refused.stderr
    pushing.sites.trees["s0"].znodes.clear()
    refused = pushing.shell.run("push", "export", tmp_path / "made", "--cluster", "s0=s0:1/c")
    assert (refused.exit_code, "there is no flumeng cluster" in refused.stderr) == (2, True)
    assert not (tmp_path / "made").exists()


def test_render_shows_the_desired_content_of_a_site(pushing: Pushing) -> None:
    pushing.write("sites/s1/flows/web.yaml", "flow: web\nbatch: {seconds: 5}\n")
    assert "seconds: 5" in pushing.run("render", "s1").stdout
    assert json.loads(pushing.run("render", "s0", "--json").stdout) == {"flow/web": WEB}
    pushing.write("sites/s1/flows/web.yaml", "flow: web\nsinks: [nope: {}]\n")
    wrong = pushing.run("render", "s0")
    assert (wrong.exit_code, "sites/s1/flows/web.yaml:2" in wrong.stderr) == (2, True)


def test_unreadable_site_does_not_keep_others_from_rolling_back(pushing: Pushing) -> None:
    pushing.applied()
    pushing.sites.trees["s1"].znodes[str(paths.push())].data = b"damaged"
    back = pushing.run("rollback", "--yes")
    assert back.exit_code == 1
    assert [pushing.flow(site) for site in ("s0", "s1", "s2")] == [None, WEB, None], back.output


def test_unreported_change_is_not_reported_reverted(pushing: Pushing) -> None:
    pushing.applied()
    pushing.sites.trees["s1"].znodes[f"{paths.push()}/{0:010d}"].data = b"damaged"
    back = pushing.run("rollback", "--yes")
    assert (back.exit_code, "s1\tfailed\tthe changes of the site's pushes" in back.stdout) == (
        1,
        True,
    ), back.output
    assert [pushing.flow(site) for site in ("s0", "s1", "s2")] == [None, WEB, None]


LINKS = """
sites:
  s0: {gateways: ["g0:9003"]}
  s1: {gateways: ["g1:9003"]}
"""
COPY = "flow: copy\nsources: [flow: {site: s0, name: web}]\nsinks: [noop]\n"


def test_sites_are_pushed_with_the_flows_that_read_them(pushing: Pushing) -> None:
    pushing.write("base/cluster.yaml", LINKS)
    pushing.write("sites/s1/flows/copy.yaml", COPY)
    plan = pushing.run("plan")
    assert plan.exit_code == 5, plan.stderr
    assert "+ site/s0: unset -> here" in plan.stdout
    assert "+ site/s0: unset -> g0:9003" in plan.stdout
    pushing.applied()
    store = pushing.sites.store("s1")
    site, cluster = store.read(paths.site("s0")), store.read(paths.cluster())
    assert site is not None and site.value.gateways == ("g0:9003",)
    assert cluster is not None and cluster.value.site == "s1"
    assert pushing.flow("s1", "copy") == COPY
    assert not pushing.sites.store("s0").exists(paths.site("s0"))
    assert pushing.run("plan").exit_code == 0


def test_site_and_its_flow_are_pruned_together_and_come_back(pushing: Pushing) -> None:
    pushing.write("base/cluster.yaml", LINKS)
    pushing.write("sites/s1/flows/copy.yaml", COPY)
    pushing.applied()
    pushing.write(
        "base/cluster.yaml", LINKS.replace('s0: {gateways: ["g0:9003"]}', "s2: {gateways: [g2:1]}")
    )
    (pushing.directory / "sites/s1/flows/copy.yaml").unlink()
    pushing.applied("--prune")
    store = pushing.sites.store("s1")
    assert not store.exists(paths.site("s0"))
    assert pushing.flow("s1", "copy") is None
    done = pushing.run("rollback", "--yes")
    assert done.exit_code == 0, done.stdout
    assert store.exists(paths.site("s0"))
    assert pushing.flow("s1", "copy") == COPY


def test_cluster_with_another_name_is_a_conflict(pushing: Pushing) -> None:
    name_cluster(Operator(pushing.sites.store("s1"), "hand", "", NOON), "other")
    pushing.write("base/cluster.yaml", LINKS)
    plan = pushing.run("plan")
    assert plan.exit_code == 3
    assert "the cluster is the site other: `flumeng site name s1` renames it" in plan.stdout


def test_loop_over_sites_refuses_the_plan(pushing: Pushing) -> None:
    pushing.write("base/cluster.yaml", LINKS)
    pushing.write("sites/s1/flows/copy.yaml", COPY.replace("web", "copy"))
    pushing.write("sites/s0/flows/copy.yaml", COPY.replace("s0", "s1").replace("web", "copy"))
    plan = pushing.run("plan")
    assert plan.exit_code == 2
    assert "s0/copy -> s1/copy -> s0/copy" in plan.stderr


def test_status_has_a_matrix_of_links(pushing: Pushing) -> None:
    pushing.write("base/cluster.yaml", LINKS)
    pushing.write("sites/s1/flows/copy.yaml", COPY)
    pushing.applied()
    store = pushing.sites.store("s1")
    link = Link(site="s0", source="web", keep_seconds=60.0, renewed=NOON)
    store.write(paths.link("copy"), link, ABSENT)
    assert "READS FROM\ts0\ns1\t1 up" in pushing.run("status").stdout
    rows = json.loads(pushing.run("status", "--json").stdout)
    assert [row["links"] for row in rows] == [{}, {"s0": {"copy": "up"}}, {}]


def test_status_reads_a_site_with_leases(pushing: Pushing) -> None:
    pushing.applied()
    store = pushing.sites.store("s1")
    store.write(paths.cursor("web", "s0:copy"), None, ABSENT)
    lease = Lease(holder="h", reader="flow copy of site s0", keep_seconds=60.0, renewed=NOON)
    store.write(paths.lease("web", "s0:copy"), lease, ABSENT)
    shown = pushing.run("status")
    assert "cannot be read" not in shown.stdout, shown.stdout
