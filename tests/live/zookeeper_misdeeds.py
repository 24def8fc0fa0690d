"""Misdeeds at ZooKeeper with a stolen certificate: a process of its own.

``python -m tests.live.zookeeper_misdeeds HOSTS FOLDER ROLE MEMBER`` tries all that no certificate
of this role allows, with the secrets of the member's groups, over a client of strangers, and
prints one line of JSON with the answer to each misdeed: the class of kazoo's error, ``no session``,
or ``done``. They come in an order in which an administrator can do all of them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.security import ACL, Id, Permissions

JOURNAL = "web.n1.0.0123abcd"
"""A journal of the node n1 and of the flow web."""
DONE = "done"
OUTSIDE = "no session"
START_SECONDS = 6.0
EVERYBODY = [ACL(Permissions.ALL, Id("world", "anyone"))]

READS = {
    "reads the secrets of groups": "/groups",
    "reads the secrets of another member": "/members/node:n1",
    "reads a flow's text": "/flows/web/revisions/1",
    "reads settings": "/cluster",
    "reads acks": f"/acks/web/main/{JOURNAL}",
}
CHANGES = {
    "gives a node work": "/nodes/n1/assignment",
    "forges a node's status": "/nodes/n1/status",
    "changes a node's roles": "/nodes/n1",
    "forges a heartbeat": "/live/nodes/n1",
    "forges a node's story": "/nodes/n1/story",
    "changes a plan": "/flows/web/plan",
    "moves an ack": f"/acks/web/main/{JOURNAL}",
    "moves the cursor of a subscriber": f"/acks/web/job/{JOURNAL}",
    "stops a flow": "/flows/web",
    "changes the text of a revision": "/flows/web/revisions/1",
    "changes the cluster's settings": "/cluster",
    "admits itself": "/schema",
    "gives a member other groups": "/members/node:n1",
    "changes the secrets of groups": "/groups",
    "changes an entry of the audit": "/audit/1",
    "ends a journal": f"/journals/{JOURNAL}",
    "changes a commit": "/commits/web/c@1",
    "changes a decided batch": "/intents/web/t",
    "changes the head of a queue": "/queues/web",
    "changes items of a queue": "/queues/web/lanes/0/0000000000",
    "forgets what was listed": "/queues/web/seen/tail",
    "hides an object that failed": "/queues/web/failed/0.1",
    "changes what a poller goes on from": "/queues/web/polls",
    "changes partitions": "/flows/web/partitions",
    "renews the lease of a reader": "/leases/web@job",
    "forges a master": "/live/masters/m1",
    "forges what a push did": "/push/1",
}
CREATIONS = {
    "admits a member": "/members/node:n9",
    "adds a revision": "/flows/web/revisions/2",
    "adds a flow": "/flows/eve",
    "adds an ack": f"/acks/web/main/{JOURNAL}0",
    "adds to the audit": "/audit/2",
    "adds a page of work": "/nodes/n1/assignment/0",
    "adds a share of a plan": "/flows/app/plan/0",
    "adds partitions": "/flows/app/partitions/0",
    "adds a commit": "/commits/web/c@2",
    "decides a batch": "/intents/web/t2",
    "adds a master": "/live/masters/m2",
    "adds a node": "/nodes/n9",
    "says that a node is live": "/live/nodes/n9",
    "adds a journal": "/journals/web.n9.0.0123abcd",
    "adds a queue": "/queues/eve",
    "adds items to a queue": "/queues/web/lanes/0/0000000001",
    "adds a failed object": "/queues/web/failed/0.2",
    "adds a cursor": "/acks/web/eve",
    "takes a lease": "/leases/web@eve",
    "adds a push": "/push/2",
    "hides a deleted flow": "/tombstones/eve",
}
REMOVALS = {
    "expels a member": "/members/node:n1",
    "removes an ack": f"/acks/web/main/{JOURNAL}",
    "removes a heartbeat": "/live/nodes/n1",
    "removes a node's status": "/nodes/n1/status",
    "removes an entry of the audit": "/audit/1",
    "removes a plan": "/flows/web/plan",
    "removes partitions": "/flows/web/partitions",
    "removes a revision": "/flows/web/revisions/1",
    "removes a commit": "/commits/web/c@1",
    "removes a decided batch": "/intents/web/t",
    "removes a journal": f"/journals/{JOURNAL}",
    "removes a master": "/live/masters/m1",
    "removes items of a queue": "/queues/web/lanes/0/0000000000",
    "removes a lease": "/leases/web@job",
    "removes what failed": "/queues/web/failed/0.1",
}
LISTS = {
    "opens the record of a member to everybody": "/members/node:n1",
    "opens the schema to everybody": "/schema",
    "opens acks to everybody": "/acks/web/main",
    "opens a node's work to everybody": "/nodes/n1/assignment",
    "opens its own node to everybody": "/nodes/n2",
}


def attempts(client: KazooClient, chroot: str) -> dict[str, Callable[[], object]]:
    kinds: dict[Callable[[str], object], dict[str, str]] = {
        client.get: READS,
        lambda path: client.set(path, b"{}"): CHANGES,
        lambda path: client.create(path, b"{}"): CREATIONS,
        lambda path: client.set_acls(path, EVERYBODY): LISTS,
        client.delete: REMOVALS,
    }
    return {
        name: partial(act, f"/{chroot}{path}")
        for act, paths in kinds.items()
        for name, path in paths.items()
    }


def show_groups(client: KazooClient, record: str) -> None:
    """Authenticate with the group secrets of a member's record, as its own process does."""
    try:
        found = json.loads(client.get(record)[0])
    except KazooException:
        return
    for group, secrets in found["secrets"].items():
        for secret in secrets:
            client.add_auth("digest", f"{group}:{secret}")


def main() -> None:
    hosts, folder, role, member = sys.argv[1:]
    servers, _, chroot = hosts.partition("/")
    client = KazooClient(
        servers,
        use_ssl=True,
        ca=f"{folder}/ca.pem",
        certfile=f"{folder}/{role}.pem",
        keyfile=f"{folder}/{role}.key",
    )
    acts = attempts(client, chroot)
    try:
        client.start(timeout=START_SECONDS)
    except KazooTimeoutError:
        print(json.dumps(dict.fromkeys(acts, OUTSIDE)))
        return
    show_groups(client, f"/{chroot}/members/{member}")
    said = {}
    for name, act in acts.items():
        try:
            act()
        except KazooException as error:
            said[name] = type(error).__name__
        else:
            said[name] = DONE
    client.stop()
    print(json.dumps(said))


if __name__ == "__main__":
    main()
