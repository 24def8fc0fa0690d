"""The desired content of a site is rendered with all its problems, and their origins."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from flumeng.config import parse_flow
from flumeng.fleet.inventory import InventoryError
from flumeng.fleet.inventory.files import read_inventory
from flumeng.fleet.inventory.rendering import render
from flumeng.fleet.resources import Resources
from flumeng.platform.errors import UserError

SITES = """\
inventory: test
variables: {lake: /lake}
groups: {eu: {variables: {region: eu}}, canary: {variables: {region: early}}}
sites:
  fra: {zookeeper: "zk.fra:2181/f", groups: [eu, canary], zone: z1}
  lon: {zookeeper: "zk.lon:2181/f", groups: [eu], variables: {lake: /lon}}
  osl: {zookeeper: "zk.osl:2181/f"}
"""
FLOW = """\
# kept, byte for byte
flow: web
sources: [tail: {paths: [/a]}]
sinks:
  - files: {path: /lake,   format: json}
"""


def rendered(directory: Path, files: Mapping[str, str]) -> Mapping[str, Resources]:
    for name, content in {"sites.yaml": SITES, **files}.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode())
    return render(read_inventory(directory))


def refused(directory: Path, files: Mapping[str, str]) -> list[str]:
    with pytest.raises(InventoryError) as found:
        rendered(directory, files)
    return str(found.value).splitlines()


def test_flow_without_an_overlay_keeps_its_bytes(tmp_path: Path) -> None:
    odd = "\ufeff" + FLOW.replace("\n", "\r\n")
    found = rendered(
        tmp_path, {"base/flows/x.yaml": FLOW, "base/flows/odd.yaml": odd.replace("web", "odd")}
    )
    assert found["fra"] == {"flow/odd": odd.replace("web", "odd"), "flow/web": FLOW}
    assert found["fra"] == found["lon"] == found["osl"]


def test_layers_lie_over_each_other_in_order(tmp_path: Path) -> None:
    def patch(tasks: int) -> str:
        return f"flow: web\nplace: {{collect: {{tasks: {tasks}}}}}\n"

    files = {
        "base/flows/web.yaml": FLOW,
        "groups/eu/flows/any-name.yaml": patch(2),
        "groups/canary/flows/web.yaml": patch(3),
        "sites/lon/flows/web.yaml": patch(4),
    }
    tasks = {
        site: parse_flow(resources["flow/web"]).place.collect.tasks
        for site, resources in rendered(tmp_path, files).items()
    }
    assert tasks == {"fra": 3, "lon": 4, "osl": None}


def test_flows_are_added_and_removed_by_layers(tmp_path: Path) -> None:
    files = {
        "base/flows/web.yaml": FLOW,
        "groups/eu/flows/web.yaml": "flow: web\n$patch: delete\n",
        "groups/canary/flows/web.yaml": "flow: web\n$patch: delete\n",
        "sites/lon/flows/web.yaml": FLOW,
        "sites/osl/flows/own.yaml": FLOW.replace("web", "own"),
    }
    found = rendered(tmp_path, files)
    assert [list(found[site]) for site in ("fra", "lon", "osl")] == [
        [],
        ["flow/web"],
        ["flow/own", "flow/web"],
    ]
    assert found["lon"]["flow/web"] == FLOW


def test_variables_have_the_values_of_the_site(tmp_path: Path) -> None:
    flow = FLOW.replace("path: /lake,  ", 'path: "${lake}/${site}/${region}",')
    files = {
        "base/flows/web.yaml": "flow: web\nsources: [tail: {paths: [/a]}]\nsinks: [noop]\n",
        "groups/eu/flows/web.yaml": flow,
    }
    found = rendered(tmp_path, files)
    assert 'path: "/lake/fra/early"' in found["fra"]["flow/web"]
    assert 'path: "/lon/lon/eu"' in found["lon"]["flow/web"]


def test_settings_chokes_and_nodes_are_rendered(tmp_path: Path) -> None:
    files = {
        "base/flows/web.yaml": FLOW,
        "base/cluster.yaml": """\
settings: {grace_seconds: 30.0, maintenance_enter: 0.75, balance: 2, spark.cores: 8,
  spark.conf: '{spark.speculation: true}'}
chokes: {web: 10 MB, web@n1: 1 MiB}
nodes:
  n1: {labels: {role: web, "a/b": "${site}"}, capacity: {slots: 4, mb: 0.5}}
""",
        "groups/eu/cluster.yaml": "settings: {grace_seconds: 60}\nchokes: {web@n1: null}\n",
        "sites/lon/cluster.yaml": "$patch: replace\nsettings: {balance: 9}\n",
    }
    found = rendered(tmp_path, files)
    assert {key: value for key, value in found["osl"].items() if key != "flow/web"} == {
        "setting/grace_seconds": "30",
        "setting/maintenance_enter": "0.75",
        "setting/balance": "2",
        "setting/spark.cores": "8",
        "setting/spark.conf": '{"spark.speculation": "true"}',
        "choke/web": "10000000",
        "choke/web@n1": "1048576",
        "label/n1/role": "web",
        "label/n1/a/b": "osl",
        "capacity/n1/slots": "4",
        "capacity/n1/mb": "0.5",
    }
    assert found["fra"]["setting/grace_seconds"] == "60"
    assert "choke/web@n1" not in found["fra"]
    assert {key for key in found["lon"] if key != "flow/web"} == {"setting/balance"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("settings: {grace: 1}", "settings.grace: unknown setting; did you mean"),
        ("settings: {grace_seconds: soon}", "settings.grace_seconds: grace_seconds takes a number"),
        ("settings: {grace_seconds: nan}", "settings.grace_seconds: grace_seconds takes a number"),
        ("settings: {spark.cores: 0}", "settings.spark.cores: spark.cores: expected at least 1"),
        ("settings: {balance: 1.5}", "settings.balance: balance takes a whole number"),
        ("settings: [1]", "settings: expected names with values, like {grace_seconds: 60}"),
        (
            "settings: {maintenance_enter: 0.2, maintenance_leave: 0.3}",
            "settings.maintenance_leave: maintenance_leave (0.3) may not be above",
        ),
        (
            "settings: {maintenance_enter: 0.1}",
            "settings.maintenance_enter: maintenance_leave (0.25)",
        ),
        ("chokes: {web: 0}", "chokes.web: expected a rate above 0"),
        ("chokes: {web: fast}", "chokes.web: expected a size"),
        ("chokes: {wbe: 1 MB}", 'chokes.wbe: the site has no flow "wbe"; did you mean "web"?'),
        ("chokes: {web@a/b: 1 MB}", "chokes.web@a/b: expected the name of a node"),
        ("nodes: {a/b: {}}", "nodes.a/b: expected the name of a node"),
        ("nodes: {n1: {label: {}}}", "nodes.n1.label: unknown option"),
        ("nodes: {n1: {capacity: {slots: many}}}", "nodes.n1.capacity.slots: expected a number"),
        ("flows: {}", "flows: unknown option"),
    ],
)
def test_invalid_cluster_file_is_reported(tmp_path: Path, text: str, told: str) -> None:
    files = {"base/flows/web.yaml": FLOW, "base/cluster.yaml": f"# one\n{text}\n"}
    (problem,) = refused(tmp_path, files)
    assert problem.startswith(f"base/cluster.yaml:2: {told}"), problem
    assert problem.endswith("(sites fra, lon, osl)")


def test_problem_is_reported_at_the_overlay_that_caused_it(tmp_path: Path) -> None:
    files = {
        "base/flows/web.yaml": FLOW + "place: {collect: {tasks: 4}}\n",
        "base/cluster.yaml": "chokes: {web: 1 MB}\n",
        "groups/eu/flows/web.yaml": """\
# over all
flow: web
place:
  collect:
    tasks: many
    tusks: 3
sinks:
  - files: {format: jsno}
""",
        "groups/canary/flows/web.yaml": "flow: web\nsinks:\n- files: {path: null}\n",
        "sites/osl/flows/web.yaml": "flow: web\n$patch: delete\n",
        "sites/osl/flows/own.yaml": "flow: own\nsinks: [noop]\n",
    }
    assert refused(tmp_path, files) == [
        'base/cluster.yaml:1: chokes.web: the site has no flow "web"; known here: own (site osl)',
        'groups/canary/flows/web.yaml:3: sinks[0].files: missing "path": expected the directory, a '
        'path or a URL, like "s3a://lake/web/dt=%Y-%m-%d/hour=%H" (site fra)',
        'groups/eu/flows/web.yaml:5: place.collect.tasks: expected a whole number; found "many" '
        "(sites fra, lon)",
        'groups/eu/flows/web.yaml:6: place.collect.tusks: unknown option; did you mean "tasks"? '
        "(sites fra, lon)",
        "groups/eu/flows/web.yaml:8: sinks[0].files.format: expected one of parquet, "
        "orc, avro, json, csv, text; "
        'found "jsno"; did you mean "json"? (sites fra, lon)',
        'sites/osl/flows/own.yaml:1: missing "sources": expected a list, like '
        '[tail: {paths: ["/var/log/app/*.log"]}] (site osl)',
    ]


def test_problems_of_expressions_and_variables_are_reported_at_their_overlay(
    tmp_path: Path,
) -> None:
    files = {
        "base/flows/web.yaml": FLOW,
        "groups/eu/flows/web.yaml": """\
flow: web
filters:
  - where: "bdoy = 1"
sinks:
  - files:
      path: /lake/${lkae}/x
""",
    }
    expression, variable = refused(tmp_path, files)
    assert expression.startswith("groups/eu/flows/web.yaml:3: filters[0].where:")
    assert variable == (
        "groups/eu/flows/web.yaml:6: sinks[0].files.path: "
        'unknown variable "lkae"; did you mean "lake"? (sites fra, lon)'
    )


def test_long_value_is_not_wrapped(tmp_path: Path) -> None:
    condition = " AND ".join(f"severity <> {n}" for n in range(100))
    patch = f"flow: web\nfilters:\n- parse: {{format: syslog}}\n- where: {condition}\n"
    files = {"base/flows/web.yaml": FLOW, "groups/eu/flows/web.yaml": patch}
    assert f"- where: {condition}\n" in rendered(tmp_path, files)["fra"]["flow/web"]


def test_removal_of_a_missing_flow_is_a_problem(tmp_path: Path) -> None:
    files = {"base/flows/web.yaml": FLOW, "groups/eu/flows/x.yaml": "flow: wbe\n$patch: delete\n"}
    assert refused(tmp_path, files) == [
        "groups/eu/flows/x.yaml:1: flow: removes flow wbe, which no lower layer has; "
        'did you mean "web"? (sites fra, lon)'
    ]


def test_single_damaged_file_of_two_hundred_is_reported(tmp_path: Path) -> None:
    files = {f"base/flows/f{n}.yaml": FLOW.replace("web", f"f{n}") for n in range(200)}
    files["base/flows/f77.yaml"] = files["base/flows/f77.yaml"].replace("json", "\x00")
    with pytest.raises(InventoryError) as found:
        rendered(tmp_path, files)
    (problem,) = found.value.problems
    assert (problem.file, problem.line) == ("base/flows/f77.yaml", 5)
    files["base/flows/f77.yaml"] = FLOW.replace("web", "f77").replace("json", "jsno")
    (said,) = refused(tmp_path, files)
    assert said.startswith("base/flows/f77.yaml:5: sinks[0].files.format:")


@pytest.mark.slow
def test_problem_common_to_a_thousand_sites_is_reported_once(tmp_path: Path) -> None:
    sites = "".join(f'  s{n}: {{zookeeper: "zk{n}:2181/f"}}\n' for n in range(1000))
    files = {
        "sites.yaml": f"inventory: many\nsites:\n{sites}",
        "base/flows/web.yaml": FLOW.replace("/lake,", "'${site}',"),
        "base/flows/own.yaml": FLOW.replace("web", "own"),
    }
    with pytest.raises(InventoryError) as found:
        rendered(tmp_path, files)
    (problem,) = {replace_site(p.message) for p in found.value.problems}
    assert "found" in problem
    files["base/flows/web.yaml"] = FLOW.replace("/lake,", "'${lake}',")
    (said,) = refused(tmp_path, files)
    assert said.endswith("(sites s0, s1, s2, s3, s4 and 995 more)")
    files["base/flows/web.yaml"] = FLOW.replace("/lake,", "'/lake/${site}',")
    found_texts = {resources["flow/web"] for resources in rendered(tmp_path, files).values()}
    assert len(found_texts) == 1000


def replace_site(message: str) -> str:
    return re.sub("s[0-9]+", "SITE", message)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"flow: web\xff", "1: is not UTF-8"),
        (b"flow: web\nflow: web\n", "2: flow: given twice"),
        (b"flow: web\nsinks:\n\t- noop\n", "3: not YAML"),
        (b"flow: !!python/object:os.system web\n", "1: tags are not allowed"),
        (b"flow: web\nx: " + b"[" * 40 + b"]" * 40, "2: not YAML: nested deeper"),
        (
            b"flow: web\na: &a [x,x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\n"
            b"c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\n",
            "aliases expand too far",
        ),
        (b"flow: web\na: &a [*a]\n", "aliases expand too far"),
        (b"flow: web\na: " + b"x" * 128 * 1024, "is larger than 128 KiB"),
        (b"flow: web\n---\nflow: other\n", "not YAML"),
        (
            b"flow: web\nx: {path: ${site}}\n",
            "2: not YAML: expected ',' or '}', but got '{'; within",
        ),
        (b"", "the file is empty"),
        (b"[flow, web]", "1: expected a mapping"),
        (b"flow: ${site}\n", "1: flow: expected 1 to 63 small letters"),
        (b"sinks: [noop]\n", '1: missing "flow"'),
    ],
)
def test_hostile_file_is_a_problem(tmp_path: Path, text: bytes, told: str) -> None:
    path = tmp_path / "groups" / "eu" / "flows" / "web.yaml"
    path.parent.mkdir(parents=True)
    path.write_bytes(text)
    (problem,) = refused(tmp_path, {"base/flows/web.yaml": FLOW})
    assert problem.startswith("groups/eu/flows/web.yaml:"), problem
    assert told in problem


def test_yaml_aliases_are_expanded(tmp_path: Path) -> None:
    files = {
        "base/flows/web.yaml": FLOW,
        "groups/eu/flows/web.yaml": """\
flow: web
place: {ingest: {labels: &l {role: a}}, collect: {labels: *l}}
""",
        "sites/lon/flows/web.yaml": "flow: web\nplace: {collect: {labels: {role: b}}}\n",
    }
    found = rendered(tmp_path, files)
    place = parse_flow(found["lon"]["flow/web"]).place
    assert (place.ingest.labels, place.collect.labels) == ({"role": "a"}, {"role": "b"})
    assert "&" not in found["fra"]["flow/web"]
    assert "*" not in found["fra"]["flow/web"]


COPY = "flow: {}\nsources: [flow: {{site: {}, name: {}}}]\nsinks: [noop]\n"
LINKS = """\
sites:
  fra: {gateways: ["g1:9003", "g2:9003"], authority: "AB:ab"}
  lon: {gateways: ["g3:9003"]}
""".replace("AB:ab", "AB:" * 31 + "ab")


def test_sites_of_the_base_are_links_and_at_the_site_its_own_name(tmp_path: Path) -> None:
    found = rendered(tmp_path, {"base/cluster.yaml": LINKS})
    fra = f"g1:9003 g2:9003 authority {'ab' * 32}"
    assert found["osl"] == {"site/fra": fra, "site/lon": "g3:9003"}
    assert found["fra"] == {"site/fra": "here", "site/lon": "g3:9003"}
    assert found["lon"] == {"site/fra": fra, "site/lon": "here"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("sites: {ams: {}}\n", "sites.ams: give the gateways of this site"),
        ('sites: {ams: {gateways: ["g1"]}}\n', "gateway 'g1': expected host:port"),
        ('sites: {ams: {gateways: ["g1:1"], authority: x}}\n', "64 hexadecimal digits"),
        ('sites: {"A b": {gateways: ["g1:1"]}}\n', "sites.A b"),
    ],
)
def test_wrong_site_is_reported_with_its_line(tmp_path: Path, text: str, told: str) -> None:
    (line,) = refused(tmp_path, {"base/cluster.yaml": text})
    assert "base/cluster.yaml:1" in line
    assert told in line


def test_loop_over_sites_is_refused_with_its_path(tmp_path: Path) -> None:
    files = {
        "sites/fra/flows/a.yaml": COPY.format("a", "lon", "b"),
        "sites/lon/flows/b.yaml": "flow: b\nsources: [flow: {name: c}]\nsinks: [noop]\n",
        "sites/lon/flows/c.yaml": COPY.format("c", "fra", "a"),
        "sites/osl/flows/a.yaml": COPY.format("a", "fra", "a"),
    }
    with pytest.raises(UserError, match="a loop over sites: fra/a -> lon/c -> lon/b -> fra/a"):
        rendered(tmp_path, files)
    (tmp_path / "sites/lon/flows/c.yaml").write_text(FLOW.replace("web", "c"))
    del files["sites/lon/flows/c.yaml"]
    assert "flow/a" in rendered(tmp_path, files)["fra"]
