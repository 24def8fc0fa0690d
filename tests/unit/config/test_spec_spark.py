"""Settings of Spark: their values, their storage, their precedence, and the permissions they
need."""

from __future__ import annotations

from pathlib import Path

import pytest

from flumeng.config import policy, spark
from flumeng.config.policy import UNRESTRICTED, SparkBounds
from flumeng.config.spark import SparkOptions
from flumeng.platform.errors import UserError


@pytest.mark.parametrize(
    ("key", "given", "kept"),
    [
        ("master", "local[4]", "local[4]"),
        ("master", '"spark://a:7077,b:7077"', "spark://a:7077,b:7077"),
        ("master", "k8s://https://h:443", "k8s://https://h:443"),
        ("master", "sc://h:15002", "sc://h:15002"),
        (
            "master",
            "sc://h:15002/;token=${secret:t};user_id=flumeng",
            "sc://h:15002/;token=${secret:t};user_id=flumeng",
        ),
        ("cores", "8", "8"),
        ("executor_memory", "1536m", "1536m"),
        ("packages", "[a:b:1,\n c:d:2]", '["a:b:1", "c:d:2"]'),
        (
            "conf",
            "{spark.speculation: true, spark.driver.port: 7400}",
            '{"spark.speculation": "true", "spark.driver.port": "7400"}',
        ),
        ("conf", "{spark.authenticate.secret: '${secret:s}'}", None),
        ("conf", "{spark.sql.catalog.lake: a.B, spark.sql.catalog.lake.io-impl: a.C}", None),
    ],
)
def test_setting_is_stored_as_one_equivalent_line(key: str, given: str, kept: str | None) -> None:
    text = spark.normal(key, given)
    assert kept in (None, text)
    assert spark.read({key: text}) == spark.read({key: given})
    assert spark.normal(key, text) == text


@pytest.mark.parametrize(
    ("key", "given", "told"),
    [
        ("master", "mesos://h:1", "spark.master: expected local"),
        ("master", "spark://h", "expected host:port"),
        ("master", "sc://h", 'expected "sc://host:port"'),
        ("master", "sc://h:1/x", 'expected "sc://host:port"'),
        ("master", "sc://h:1/;token=hunter2", "a reference to a secret for token"),
        ("master", "sc://h:1/;token=a${secret:s}", "a reference to a secret for token"),
        ("master", "sc://h:1/;session_id=a", "sc://host:port/;name=value"),
        ("master", "sc://h:1/;token", "sc://host:port/;name=value"),
        ("cores", "0", "spark.cores: expected at least 1"),
        ("executor_memory", "2 GiB", "like 2g or 1536m"),
        ("packages", "[a:b]", "expected Maven coordinates"),
        ("jars", "[lib/x.jar]", "an absolute path or a URL"),
        ("python", "python3", "expected an absolute path"),
        ("conf", "{spark.sql.ansi.enabled: true}", "flumeng sets this setting itself"),
        ("conf", "{spark.jars: /x.jar}", "flumeng sets this setting itself"),
        ("conf", "{spark.sql.catalogImplementation: hive}", "flumeng sets this setting itself"),
        ("conf", "{spark.authenticate.secret: hunter2}", "conf.*: expected a reference to a se"),
        ("conf", "{spark.ssl.keyPassword: 'a${secret:s}'}", "expected a reference to a secret"),
        ("conf", "{spark.sql.catalog.lake.credential: a}", "expected a reference to a secret"),
        ("conf", "[1]", "expected names with values"),
        ("mastre", "x", "unknown option"),
        ("conf", "{", "spark."),
    ],
)
def test_invalid_setting_is_reported(key: str, given: str, told: str) -> None:
    with pytest.raises(UserError, match=told.replace("[", r"\[")):
        spark.normal(key, given)


def test_settings_of_a_node_override_those_of_the_cluster() -> None:
    texts = spark.effective({"master": "yarn", "cores": "8"}, {"cores": "2"})
    assert spark.read(texts) == SparkOptions(master="yarn", cores=2)
    assert spark.read({}).local
    assert not spark.read(texts).local


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            SparkOptions(master="spark://evil:7077"),
            "spark://evil:7077: name it in `spark.masters` there",
        ),
        (SparkOptions(jars=("/tmp/evil.jar",)), "spark.jars"),
        (SparkOptions(packages=("evil:evil:1",)), "spark.packages"),
        (SparkOptions(python="/tmp/python"), "spark.python"),
        (SparkOptions(conf={"spark.driver.extraJavaOptions": "-agentpath:x"}), "spark.conf"),
        (SparkOptions(conf={"spark.plugins": "evil"}), "spark.conf"),
        (SparkOptions(conf={"spark.sql.adaptive.customCostEvaluatorClass": "evil"}), "spark.conf"),
        (SparkOptions(conf={"spark.sql.catalog.lake": "evil"}), "spark.conf"),
    ],
)
def test_node_without_a_policy_file_accepts_nothing_that_runs_code(
    options: SparkOptions, told: str
) -> None:
    with pytest.raises(UserError, match=told):
        UNRESTRICTED.spark.require(options)


def test_policy_file_lists_allowed_masters_packages_and_settings() -> None:
    allowed = policy.parse(
        """
spark:
  masters: ["spark://a:7077"]
  packages: ["org.postgresql:*"]
  jars: ["/opt/jdbc/*"]
  conf: [spark.driver.port, spark.executor.*, spark.sql.catalog.lake.*]
""",
        "node.yaml",
    ).spark
    good = SparkOptions(
        master="spark://a:7077",
        packages=("org.postgresql:postgresql:42.7.4",),
        jars=("/opt/jdbc/x.jar",),
        conf={"spark.driver.port": "1", "spark.sql.catalog.lake.uri": "x"},
    )
    allowed.require(good)
    allowed.require(SparkOptions(master="local[2]"))
    for bad in (
        SparkOptions(master="spark://a:7077,b:7077"),
        SparkOptions(jars=("/opt/other/x.jar",)),
        SparkOptions(conf={"spark.speculation": "true"}),
    ):
        with pytest.raises(UserError, match="this node's policy file does not allow"):
            allowed.require(bad)
    UNRESTRICTED.spark.require(SparkOptions(conf={"spark.speculation": "true"}))


def test_path_prefix_in_the_policy_is_compared_with_links_resolved(tmp_path: Path) -> None:
    (tmp_path / "jdbc").mkdir()
    (tmp_path / "evil").mkdir()
    (tmp_path / "jdbc" / "out").symlink_to(tmp_path / "evil")
    (tmp_path / "way").symlink_to(tmp_path / "jdbc")
    (tmp_path / "jdbc" / "python3").symlink_to("/usr/bin/env")
    allowed = SparkBounds(jars=(f"{tmp_path}/jdbc/*",), python=(f"{tmp_path}/jdbc/*",))
    for place in (f"{tmp_path}/jdbc/x.jar", f"{tmp_path}/way/x.jar", f"file://{tmp_path}/jdbc/x"):
        allowed.require(SparkOptions(jars=(place,)))
    allowed.require(SparkOptions(python=f"{tmp_path}/jdbc/python3"))
    for name in ("../evil/x.jar", "a/../../evil/x.jar", "out/x.jar", "%2e%2e/evil/x", "\\.\\./x"):
        for place in (f"{tmp_path}/jdbc/{name}", f"file://{tmp_path}/jdbc/{name}"):
            with pytest.raises(UserError, match=r"spark\.jars"):
                allowed.require(SparkOptions(jars=(place,)))
    with pytest.raises(UserError, match=r"spark\.python"):
        allowed.require(SparkOptions(python=f"{tmp_path}/jdbc/../evil/python3"))


@pytest.mark.parametrize("text", ["cores: '8'", "jars: '[/x.jar]'", "ui: 'true'", "python: /p"])
def test_setting_that_a_connect_server_decides_is_refused_by_name(text: str) -> None:
    key, _, value = text.partition(": ")
    texts = {"master": "sc://h:15002", key: value.strip("'")}
    told = f"spark.{key}: the Spark Connect server decides this.*set spark.{key} --unset"
    with pytest.raises(UserError, match=told):
        spark.read(texts)
    assert spark.read({**texts, "master": "yarn"}).master == "yarn"


def test_connect_session_takes_only_settings_of_spark_sql() -> None:
    master = {"master": "sc://h:15002"}
    spark.read({**master, "conf": "{spark.sql.shuffle.partitions: '4'}"})
    with pytest.raises(
        UserError, match=r"conf\.spark\.speculation: a Spark Connect server takes no"
    ):
        spark.read({**master, "conf": "{spark.speculation: 'true'}"})


def test_policy_names_a_connect_server_without_its_parameters() -> None:
    allowed = policy.parse('spark: {masters: ["sc://h:15002"]}', "node.yaml").spark
    allowed.require(spark.read({"master": "sc://h:15002/;token=${secret:t}"}))
    for other in ("sc://h:15003", "sc://evil:15002/;token=${secret:t}"):
        with pytest.raises(UserError, match="does not allow Spark's sc://"):
            allowed.require(spark.read({"master": other}))
