"""The common part of Kafka's source, channel and sink: brokers and authentication."""

from __future__ import annotations

import re

from flumeng_flume.answers import (
    Answers,
    Differs,
    Elsewhere,
    Options,
    Setting,
    secret_reference,
    unresolved,
    words,
)
from flumeng_flume.findings import Log
from flumeng_flume.ng.agents import Part

OFFSETS = (
    "flumeng keeps offsets itself and imports none: it begins at start_from; set start_offsets to "
    "continue where Flume was"
)
_STORES = Differs("name PEM files in tls: ca, certificate, key")
_NAMES = ("consumer.", "producer.", "")
CONNECTION: Answers = {
    "kafka.bootstrap.servers": Elsewhere(),
    "brokerList": Elsewhere(),
    "bootstrap.servers": Elsewhere(),
    "zookeeperConnect": Elsewhere(),
    "kafka.*security.protocol": Elsewhere(),
    "kafka.*sasl.mechanism": Elsewhere(),
    "kafka.*sasl.jaas.config": Elsewhere(),
    "kafka.*sasl.kerberos.service.name": Differs("use SASL with SCRAM or PLAIN, or certificates"),
    "kafka.*ssl.*password": _STORES,
    "kafka.*ssl.*": _STORES,
}


def brokers(part: Part, options: Options, log: Log) -> bool:
    """Set the options for connecting to brokers; return False when no brokers are known."""
    servers = part.first("kafka.bootstrap.servers", "brokerList", "bootstrap.servers")
    _refuse_flume_format(part, log)
    if (zookeeper := part.first("zookeeperConnect")) is not None:
        log.differs(zookeeper.location, "Kafka is reached through its brokers, named in brokers")
    if servers is None and zookeeper is not None and not unresolved(zookeeper.value):
        guessed = [f"{word.partition(':')[0]}:9092" for word in words(zookeeper.value)]
        options.set("brokers", guessed, zookeeper)
        log.missing(zookeeper.location, f"brokers: {guessed[0]} is a guess: name the brokers")
        return True
    if servers is None:
        log.missing(
            part.type_location, "names no brokers: set kafka.bootstrap.servers, import again"
        )
        return False
    if (name := unresolved(servers.value)) is not None:
        log.missing(servers.location, f"the value of {name} is not known: set it, import again")
        return False
    options.set("brokers", words(servers.value), servers)
    log.mapped(servers.location, "brokers")
    _security(part, options, log)
    _report_others(part, log)
    return True


def _refuse_flume_format(part: Part, log: Log) -> None:
    if part.kind == "channels" and part.first("parseAsFlumeEvent") is None:
        log.differs(
            part.type_location,
            "messages hold the body alone: other readers and writers of its topic that take "
            "AvroFlumeEvent, Flume's default, have to change",
        )
    for name in ("useFlumeEventFormat", "parseAsFlumeEvent"):
        if (setting := part.first(name)) is None:
            continue
        if setting.value.lower() == "true":
            log.missing(
                setting.location,
                "messages hold the body alone, headers are headers of messages: readers and "
                "writers of AvroFlumeEvent have to change",
            )
        else:
            log.mapped(setting.location, "nothing to set: messages hold the body")


def _security(part: Part, options: Options, log: Log) -> None:
    protocol = _security_setting(part, "security.protocol")
    if protocol is not None:
        if protocol.value.upper().endswith("SSL"):
            options.set("tls", {}, protocol)
            log.differs(
                protocol.location, "tls: the brokers are checked with the host's authorities"
            )
        elif protocol.value.upper().endswith("PLAINTEXT"):
            log.mapped(protocol.location, "no tls")
        else:
            log.missing(protocol.location, "expected PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL")
    jaas, mechanism = (
        _security_setting(part, "sasl.jaas.config"),
        _security_setting(part, "sasl.mechanism"),
    )
    user = re.search(r"username\s*=\s*[\"']?([^\s\"';]+)", jaas.value) if jaas else None
    if jaas is not None and user:
        options.set("username", user[1], jaas)
        options.set("password", secret_reference(jaas), jaas)
        log.differs(
            jaas.location,
            f"username, password: put it into the secret {options.values['password'][9:-1]}",
        )
    elif jaas is not None:
        log.missing(jaas.location, "names no user: use SASL with SCRAM or PLAIN")
    if mechanism is not None:
        if mechanism.value in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
            options.set("mechanism", mechanism.value, mechanism)
            log.mapped(mechanism.location, f"mechanism: {mechanism.value}")
        else:
            log.missing(
                mechanism.location, "flumeng supports SCRAM and PLAIN: use one of them, or tls"
            )


def _report_others(part: Part, log: Log) -> None:
    """Report settings that a channel repeats for its consumer and its producer."""
    for name in ("security.protocol", "sasl.jaas.config", "sasl.mechanism"):
        for prefix in _NAMES:
            setting = part.first(f"kafka.{prefix}{name}")
            if setting is not None and not log.has(setting.location):
                log.differs(setting.location, "the same setting serves reading and writing")


def _security_setting(part: Part, name: str) -> Setting | None:
    return part.first(*(f"kafka.{prefix}{name}" for prefix in _NAMES))
