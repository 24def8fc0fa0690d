"""Members of a secured cluster: a record for each, with the secrets of its groups. Expulsion
replaces each group's secret in the other records, then in the schema, then in all access lists."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flumeng.control.commands.lookup import found_by_name, readable_by_name
from flumeng.control.zookeeper import (
    ABSENT,
    ANY,
    Put,
    ReadableStore,
    Remove,
    Store,
    Versioned,
    Write,
    access_lists,
)
from flumeng.control.zookeeper.transaction import singly
from zkschema import paths, records, table
from zkschema.access import ANY_OPERATOR, NAMED, SECURED, Member, Secured, groups_of
from zkschema.table import ZPath

GROUPS = (*NAMED, ANY_OPERATOR)


@dataclass(frozen=True)
class Change:
    """Members by ``ROLE:NAME`` before and after. ``renewed``: groups that get new secrets."""

    after: Mapping[str, Member]
    before: Mapping[str, Member]
    renewed: frozenset[str]

    @classmethod
    def of(
        cls, before: Mapping[str, Member], after: Mapping[str, Member], groups: Collection[str]
    ) -> Change:
        """Compute the change; ``groups`` are those that have an identity already."""
        lost = {
            group
            for name, member in before.items()
            for group in groups_of(member)
            if name not in after or group not in groups_of(after[name])
        }
        return cls(after, before, frozenset(lost | {*GROUPS}.difference(groups)))

    @property
    def written(self) -> list[str]:
        return [
            name
            for name, member in self.after.items()
            if self.before.get(name) != member or not self.renewed.isdisjoint(groups_of(member))
        ]

    @property
    def gone(self) -> list[str]:
        return [name for name in self.before if name not in self.after]


def members(
    store: ReadableStore, schema: records.Schema, among: Collection[str] | None = None
) -> dict[str, Member]:
    """Return the members by ``ROLE:NAME``: all, or the operators and those named in ``among``."""
    admitted = Secured(schema.certificates, schema.members).admitted
    if among is None:
        names = store.children(paths.members())
    else:
        records_by_name = readable_by_name(store, paths.member, among)
        names = [name for name, record in records_by_name.items() if record.value.secrets]
    return {name: Member(name) for name in names if not name.startswith("operator:")} | admitted


def renew(store: Store, schema: records.Schema, change: Change) -> dict[str, str]:
    """Write the records of changed members; return the groups' identities. A record has the old
    secret besides the new one until access lists are set."""
    current = store.read(paths.groups())
    kept = {
        group: tuple(
            secret
            for secret in (current.value.secrets.get(group, ()) if current else ())
            if access_lists.identity(group, secret) == schema.groups.get(group)
        )
        for group in GROUPS
    }
    fresh = {
        group: (secrets.token_urlsafe(32), *own_secrets)
        if group in change.renewed or not own_secrets
        else own_secrets
        for group, own_secrets in kept.items()
    }
    if current is None or fresh != current.value.secrets:
        record = records.Groups(secrets=fresh)
        store.write(paths.groups(), record, current.version if current else ABSENT)
    for part in singly(store.scale, list(_records(store, change, fresh))):
        store.commit(part)
    return {group: access_lists.identity(group, own[0]) for group, own in fresh.items()}


def revoke(store: Store, change: Change) -> None:
    writes = [Put(path, records.Member(), ANY) for path in _records_left(store, change)]
    for part in singly(store.scale, writes):
        store.commit(part)


def expel(store: Store, change: Change) -> None:
    """Remove expelled members' records; this comes last, so that the command can be repeated."""
    for part in singly(store.scale, [Remove(path, ANY) for path in _records_left(store, change)]):
        store.commit(part)


def _records_left(store: Store, change: Change) -> list[ZPath[records.Member]]:
    gone = [paths.member(name) for name in change.gone]
    read = store.read_each(gone)
    return [path for path, record in zip(gone, read, strict=True) if record is not None]


def _records(
    store: Store, change: Change, secret: Mapping[str, tuple[str, ...]]
) -> Iterator[Write]:
    for name, current in found_by_name(store, paths.member, change.written).items():
        member = change.after[name]
        own = {group: secret[group] for group in groups_of(member)}
        record = records.Member(flows=member.flows, secrets=own)
        if isinstance(current, Versioned) and current.value == record:
            continue
        expect = current.version if current is not None else ABSENT
        yield Put(paths.member(name), record, expect)


def without_secrets(
    documents: Mapping[str, dict[str, Any] | None],
) -> dict[str, dict[str, Any] | None]:
    kept = dict(documents)
    kept.pop(str(paths.groups()), None)
    for path, document in documents.items():
        if table.member.matches(path) and document is not None:
            kept[path] = {**document, "secrets": {}}
    return kept


def with_fresh_secrets(
    store: ReadableStore, documents: Mapping[str, dict[str, Any] | None]
) -> dict[str, dict[str, Any] | None]:
    """Give an export's znodes new secrets; a repeated import reuses the first ones."""
    schema = documents.get(str(paths.schema()))
    if not schema or SECURED not in schema.get("features", ()):
        return dict(documents)
    current = store.read(paths.groups())
    secrets_before = current.value.secrets if current else {}
    fresh = {group: secrets_before.get(group) or (secrets.token_urlsafe(32),) for group in GROUPS}
    znodes = dict(documents)
    znodes[str(paths.groups())] = {"v": 1, "secrets": {g: list(own) for g, own in fresh.items()}}
    for path, document in documents.items():
        if table.member.matches(path) and document is not None:
            flows = document.get("flows")
            member = Member(path.rpartition("/")[2], None if flows is None else tuple(flows))
            own = {group: list(fresh[group]) for group in groups_of(member)}
            znodes[path] = {**document, "secrets": own}
    identities = {group: access_lists.identity(group, own[0]) for group, own in fresh.items()}
    znodes[str(paths.schema())] = {**schema, "groups": identities}
    return znodes


def names(store: ReadableStore, schema: records.Schema) -> Sequence[str]:
    """Return the members in the form that ``--member`` accepts."""
    return sorted(map(str, members(store, schema).values()))
