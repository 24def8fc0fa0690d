"""A real Kafka in one process, in KRaft mode, on ports that it keeps for its whole life.

``FLUMENG_TEST_KAFKA=host:port`` names one that runs already, to which everybody may write.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from flumeng.platform.java import find_java
from tests.testkit.servers.maven import jars
from tests.testkit.servers.server_process import ServerProcess, listens

ARTIFACT = "org.apache.kafka:kafka_2.13:4.2.0"
CLUSTER = "AAAAAAAAAAAAAAAAAAAAAQ"
USER, PASSWORD = "flumeng", "never-a-secret"
PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}{secure_listener}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL,SSL:SSL
controller.listener.names=CONTROLLER
log.dirs={data}/data
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
broker.session.timeout.ms=10000
broker.heartbeat.interval.ms=1000
group.initial.rebalance.delay.ms=0
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
log.cleaner.backoff.ms=200
"""
SECURE = """\
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_ssl.plain.sasl.jaas.config=\
org.apache.kafka.common.security.plain.PlainLoginModule required user_{user}="{password}";
listener.name.sasl_ssl.ssl.keystore.type=PEM
listener.name.sasl_ssl.ssl.keystore.location={keystore}
listener.name.ssl.ssl.keystore.type=PEM
listener.name.ssl.ssl.keystore.location={keystore}
listener.name.ssl.ssl.truststore.type=PEM
listener.name.ssl.ssl.truststore.location={ca}
listener.name.ssl.ssl.client.auth=required
"""


class RealKafka(ServerProcess):
    """Without authentication all operations are allowed at ``address``.

    With ``keystore``, a PEM file of a key and its certificate, it listens with TLS too, and ACLs
    apply: at ``secure_address`` with SASL, for USER; at ``certified_address`` for clients with a
    certificate of ``ca``.
    """

    name = "Kafka"
    variable = "FLUMENG_TEST_KAFKA"

    def __init__(self, data: Path, keystore: Path | None = None, ca: Path | None = None) -> None:
        super().__init__(data / "server.log")
        port, secure_port, certified_port, self._controller_port = _free_ports(4)
        self.address = self.given or f"127.0.0.1:{port}"
        self.secure_address = f"127.0.0.1:{secure_port}" if keystore else ""
        self._data = data
        self.certified_address = f"127.0.0.1:{certified_port}" if keystore else ""
        self._keystore, self._ca = keystore, ca

    def start(self, *, wait_seconds: float = 60.0) -> None:
        """Start, and return when it answers."""
        if self.given is not None:
            return
        scratch = f"-Djava.io.tmpdir={self._data}"
        java = [find_java(), "-Xmx512m", scratch, "-cp", f"{jars(ARTIFACT)}/*"]
        settings = self._data / "server.properties"
        if not settings.exists():
            self._data.mkdir(parents=True, exist_ok=True)
            settings.write_text(self._properties())
            storage = ["kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(settings)]
            subprocess.run([*java, *storage], check=True, capture_output=True)
        self._launch([*java, "kafka.Kafka", str(settings)])
        # A client that asks before the port answers floods standard error.
        self._wait(lambda: listens(self.address), wait_seconds)
        self._admin().list_topics(timeout=wait_seconds)

    def restore(self) -> None:
        """Bring the broker back from any state and delete all topics; internal ones stay."""
        if self.given is not None:
            return
        self.thaw()
        if self._started.poll() is not None:
            self.start()
        topics = [name for name in self._topics() if not name.startswith("__")]
        admin = self._admin()
        for done in admin.delete_topics(topics).values() if topics else ():
            done.result(60)
        self._wait(lambda: not self._topics().intersection(topics), 60)

    def create_topic(
        self, name: str, config: Mapping[str, str] | None = None, *, partitions: int = 3
    ) -> None:
        from confluent_kafka.cimpl import NewTopic  # noqa: PLC0415  an extra

        topic = NewTopic(name, partitions, 1, config=dict(config or {}))
        admin = self._admin()
        admin.create_topics([topic])[name].result(30)

    def add_partitions(self, name: str, partitions: int) -> None:
        """Raise the topic's number of partitions to ``partitions``."""
        from confluent_kafka.cimpl import NewPartitions  # noqa: PLC0415  an extra

        admin = self._admin()
        admin.create_partitions([NewPartitions(name, partitions)])[name].result(30)

    def delete_topic(self, name: str) -> None:
        admin = self._admin()
        admin.delete_topics([name])[name].result(30)

    def allow(self, user: str, topic: str, operation: str = "WRITE") -> None:
        """Allow an operation over ``secure_address``."""
        import confluent_kafka.admin as kafka  # noqa: PLC0415  an extra

        names: Any = kafka
        acl = names.AclBinding(
            names.ResourceType.TOPIC,
            topic,
            names.ResourcePatternType.LITERAL,
            f"User:{user}",
            "*",
            names.AclOperation[operation],
            names.AclPermissionType.ALLOW,
        )
        admin = self._admin()
        admin.create_acls([acl])[acl].result(30)

    def messages(self, topic: str) -> list[Any]:
        """All messages in a topic, in the order of their partitions."""
        from confluent_kafka import Consumer, TopicPartition  # noqa: PLC0415  an extra

        consumer = Consumer({"bootstrap.servers": self.address, "group.id": "none"})
        found = []
        for number in consumer.list_topics(topic, 30).topics[topic].partitions:
            at, end = consumer.get_watermark_offsets(TopicPartition(topic, number), 30)
            consumer.assign([TopicPartition(topic, number, at)])
            while at < end:
                taken = [one for one in consumer.consume(10_000, 0.2) if one.error() is None]
                at = max([at, *((one.offset() or 0) + 1 for one in taken)])
                found += taken
        consumer.close()
        return found

    def _properties(self) -> str:
        secure = f",SASL_SSL://{self.secure_address},SSL://{self.certified_address}"
        port = self.address.rpartition(":")[2]
        text = PROPERTIES.format(
            port=port,
            controller=self._controller_port,
            data=self._data,
            secure_listener=secure if self._keystore else "",
        )
        if self._keystore is not None:
            text += SECURE.format(
                user=USER, password=PASSWORD, keystore=self._keystore, ca=self._ca
            )
        return text

    def _topics(self) -> set[str]:
        return set(self._admin().list_topics(timeout=30).topics)

    def _admin(self) -> Any:
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415  an extra

        return AdminClient({"bootstrap.servers": self.address, "log_level": 0})


def _free_ports(count: int) -> list[int]:
    """Ports without a listener, all different."""
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
