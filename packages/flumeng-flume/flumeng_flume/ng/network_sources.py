"""The sources of Flume NG that listen: RPC, netcat, syslog and HTTP."""

from __future__ import annotations

from collections.abc import Mapping

from flumeng_flume.answers import (
    Answers,
    Differs,
    Elsewhere,
    Missing,
    Needless,
    Options,
    To,
    positive,
    truth,
    unresolved,
    words,
)
from flumeng_flume.findings import Log
from flumeng_flume.ng.agents import Part
from flumeng_flume.ng.source_row import Build, Row
from flumeng_flume.stream import ANY, BODY, Stream
from flumeng_flume.tls import SERVER_TLS, serve_tls


def _listen(default_host: str = "0.0.0.0", *names: str) -> Build:
    """Return a builder that sets an address from the properties for host and port."""
    hosts, ports = names or ("bind", "host"), ("port",)

    def build(part: Part, options: Options, _stream: Stream, log: Log) -> list[Options]:
        host, number = part.first(*hosts), part.first(*ports)
        if number is None:
            log.missing(part.type_location, "has no port, and there is no default")
            return []
        address = _address(host.value if host else default_host, number.value)
        for setting in (host, number):
            if setting is not None and (name := unresolved(setting.value)):
                log.missing(
                    setting.location, f"the value of {name} is not known: set it, import again"
                )
                return []
            if setting is not None:
                log.mapped(setting.location, f"listen: {address}")
        options.set("listen", address, number)
        serve_tls(part.settings, options, log)
        return [options]

    return build


def _address(host: str, number: str) -> str:
    return f"[{host}]:{number}" if ":" in host else f"{host}:{number}"


def _rpc(part: Part, options: Options, stream: Stream, log: Log) -> list[Options]:
    options.set("framing", "length-prefixed")
    return _listen()(part, options, stream, log)


def _netcat(part: Part, options: Options, stream: Stream, log: Log) -> list[Options]:
    acks = part.first("ack-every-event")
    if acks is not None and not truth(acks.value):
        log.mapped(acks.location, "nothing to set: senders are not answered")
    else:
        log.differs(
            acks.location if acks else part.type_location,
            "source tcp: senders are not answered with OK",
        )
    return _listen()(part, options, stream, log)


def _netcat_udp(part: Part, options: Options, stream: Stream, log: Log) -> list[Options]:
    options.set("framing", "newline")
    return _listen()(part, options, stream, log)


def _http(part: Part, options: Options, stream: Stream, log: Log) -> list[Options]:
    made = _listen()(part, options, stream, log)
    handler = part.first("handler")
    name = handler.value.rpartition(".")[2] if handler else "JSONHandler"
    if name == "JSONHandler":
        stream.add("flume_headers", f"get_json_object({BODY}, '$.headers')")
        stream.replace(
            "body", f"CAST(coalesce(get_json_object({BODY}, '$.body'), {BODY}) AS BINARY)"
        )
        stream.headers[ANY] = "flume_headers"
        if handler is not None:
            log.mapped(handler.location, "headers and body are taken out of JSON by select")
    elif handler is not None:
        log.missing(
            handler.location,
            "an event is a line of a request, or an entry of its array when it is JSON: senders "
            "have to be adapted",
        )
    return made


def _syslog(protocol: str) -> Build:
    def build(part: Part, options: Options, stream: Stream, log: Log) -> list[Options]:
        if protocol == "udp":
            options.set("protocol", "udp")
        made = _listen()(part, options, stream, log)
        parse_syslog(part, stream, log)
        return made

    return build


def parse_syslog(part: Part, stream: Stream, log: Log) -> None:
    """Parse syslog into columns. As in Flume, the body becomes the message, unless ``keepFields``
    keeps fields in it."""
    timezone = {"timezone": part.get("timezone")} if part.get("timezone") else {}
    added = ("facility", "severity", "app", "procid", "msgid", "structured", "message")
    try:
        stream.parse(added, format="syslog", **timezone)
    except ValueError as error:
        log.missing(part.type_location, f"parse: {error}")
        return
    kept = part.first("keepFields")
    words_kept = (kept.value if kept else "none").lower()
    if words_kept in ("none", "false"):
        stream.take("body", "message")
        if kept is not None:
            log.mapped(kept.location, "the body becomes the message that parse finds")
    elif kept is not None and words_kept in ("all", "true"):
        log.mapped(kept.location, "the body stays as it was received")
    elif kept is not None:
        log.differs(kept.location, "the body stays as it was received, with all fields")
    stream.headers |= {
        "Facility": "facility", "Severity": "severity", "host": "host", "hostname": "host",
        "timestamp": "ts", "priority": "facility * 8 + severity",
    }  # fmt: skip


def _multiport(part: Part, options: Options, stream: Stream, log: Log) -> list[Options]:
    ports = part.first("ports")
    if ports is None:
        log.missing(part.type_location, "has no ports")
        return []
    host = part.get("host", "0.0.0.0")
    made = []
    for word in words(ports.value):
        each = Options("", {**options.values}, {**options.origins})
        each.set("listen", f"{host}:{word}", ports)
        serve_tls(part.settings, each, log)
        made.append(each)
    log.mapped(ports.location, f"a source syslog for each of {len(made)} ports")
    if (named := part.first("host")) is not None:
        log.mapped(named.location, "listen")
    parse_syslog(part, stream, log)
    return made


_ADDRESS: Answers = {"bind": Elsewhere(), "host": Elsewhere(), "port": Elsewhere(), **SERVER_TLS}
_LINES = "another flumeng sends to it with the sink tcp; programs send lines, or use http instead"
_RPC = Row(
    "tcp",
    {
        **_ADDRESS,
        "threads": Needless("all connections are served at once"),
        "compression-type": Missing("compress with TLS in front, or not at all"),
        "ipFilter": Differs("limit the senders by TLS with client_ca, or by a firewall"),
        "ipFilterRules": Differs("limit the senders by TLS with client_ca, or by a firewall"),
        "kerberos": Missing("use TLS with client_ca"),
        "agent-*": Missing("use TLS with client_ca"),
        "framing": Elsewhere(),
    },
    _rpc,
    f"it does not speak the RPC of Flume: {_LINES}",
)
_SYSLOG: Answers = {
    **_ADDRESS,
    "eventSize": To("max_line_bytes", positive),
    "maxEventSize": To("max_line_bytes", positive),
    "maxsize": To("max_line_bytes", positive),
    "keepFields": Elsewhere(),
    "clientIPHeader": Elsewhere(),
    "clientHostnameHeader": Differs(
        "the sender's address is in attrs['peer'], its name is not kept"
    ),
    "format.*": Missing("parse knows the formats of RFC 3164 and 5424, and devices' own"),
    "charset.*": Differs("bytes are passed on as they are; read them as that charset later"),
    "portHeader": Missing("the port of a message is not kept: make a flow for each"),
    "ports": Elsewhere(),
    "numProcessors": Needless("a node's ingest workers share the work"),
    "readBufferSize": Needless("buffers grow as they have to"),
}
ROWS: Mapping[str, Row] = {
    "avro": _RPC,
    "thrift": _RPC,
    "netcat": Row(
        "tcp",
        {
            **_ADDRESS,
            "max-line-length": To("max_line_bytes", positive),
            "ack-every-event": Elsewhere(),
        },
        _netcat,
    ),
    "netcatudp": Row(
        "udp",
        {**_ADDRESS, "remoteAddressHeader": Differs("the sender is in attrs['peer']")},
        _netcat_udp,
    ),
    "syslogtcp": Row("syslog", _SYSLOG, _syslog("tcp")),
    "syslogudp": Row("syslog", _SYSLOG, _syslog("udp")),
    "multiport_syslogtcp": Row("syslog", _SYSLOG, _multiport),
    "http": Row(
        "http",
        {
            **_ADDRESS,
            "handler": Elsewhere(),
            "handler.*": Missing("there are no handlers: filters read the content of a body"),
            "excludeProtocols": Differs("TLS is at least of version 1.2"),
            "QueuedThreadPool.*": Needless("all requests are served at once"),
            "HttpConfiguration.*": Needless("flumeng serves HTTP by itself"),
            "SslContextFactory.*": Differs("TLS is set by tls"),
            "ServerConnector.*": Needless("flumeng serves HTTP by itself"),
            "enableSSL": Elsewhere(),
            "keystorePassword": Elsewhere(),
        },
        _http,
    ),
}
