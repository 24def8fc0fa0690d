"""A real OpenSearch, from the jars of Maven Central: as that of Elasticsearch, without modules."""

from __future__ import annotations

from flumeng.platform.java import find_java
from tests.testkit.servers import maven
from tests.testkit.servers.elasticsearch import RealElasticsearch

VERSION = "2.19.3"
LOG4J = "2.21.0"


class RealOpenSearch(RealElasticsearch):
    name = "OpenSearch"
    configuration = "opensearch.yml"
    launcher = "OpenSearchLauncher"

    def _java(self) -> list[str]:
        return [find_java(), f"-Dopensearch.path.home={self.data}"]

    def _install_jars(self) -> None:
        artifacts = (
            f"org.opensearch:opensearch:{self.version}",
            f"org.opensearch.plugin:transport-netty4-client:{self.version}",
            f"org.apache.logging.log4j:log4j-core:{LOG4J}",
        )
        (self.data / "lib").symlink_to(maven.jars(*artifacts))
