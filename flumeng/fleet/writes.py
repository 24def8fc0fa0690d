"""Turns changes into one transaction, with a push entry and an audit entry. Pure. Writes expect the
versions of the site copy that was compared, so one of two concurrent changes is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from flumeng.control.commands.chains import why_not_deleted
from flumeng.control.commands.isolated_parts import deletion, parts_there
from flumeng.control.commands.operator import audit_entry
from flumeng.control.commands.revisions import RefusedError, next_revisions, revision_writes
from flumeng.control.commands.settings import SETTINGS
from flumeng.control.commands.sites import breaks_folder
from flumeng.control.zookeeper import (
    ABSENT,
    ANY,
    Check,
    Expected,
    Path,
    Put,
    Remove,
    Store,
    Version,
    Versioned,
    Write,
)
from flumeng.control.zookeeper.transaction import first_that_fit
from flumeng.fleet.comparison import Change
from flumeng.fleet.resources import (
    CAPACITY,
    CHOKE,
    FLOW,
    HERE,
    LABEL,
    SETTING,
    SITE,
    kind_of,
    name_of,
    of_node,
    site_of,
)
from flumeng.fleet.site_copy import SiteCopy
from zkschema import paths, records
from zkschema.records import PushEntry, PushSource, ResourceChange

V = TypeVar("V")

KEEP_ENTRIES = 100
REMOVED_AT_ONCE = 20
CONFIRMING = ("take", "confirm")


def first_part(
    copy: SiteCopy, changes: Sequence[Change], push: records.Push, source: PushSource, verb: str
) -> Sequence[Change]:
    """Return as many changes as fit into one transaction, usually all; sites come before the flows
    that read them, and go after them. Raises ``RefusedError``."""
    changes = sorted(changes, key=_turn)

    def fits(some: Sequence[Change]) -> bool:
        return copy.scale.fits(transaction(copy, some, push, source, verb))

    return first_that_fit(changes, fits)


def recomposed_flows(copy: SiteCopy, changes: Iterable[Change]) -> dict[str, str]:
    """Return why flows not named in a change get a revision. Raises ``RefusedError``."""
    return {
        revision.flow: revision.because
        for revision in next_revisions(with_sites(copy, changes), texts_of(changes))
        if revision.because and revision.changed
    }


def refused_flows(copy: SiteCopy, changes: Iterable[Change]) -> dict[str, str]:
    """Return why flows may not get their text or not be deleted, by key."""
    refused: dict[str, str] = {}
    try:
        next_revisions(with_sites(copy, changes), texts_of(changes))
    except RefusedError as error:
        refused = error.refused
    for change in changes:
        if kind_of(change.key) == FLOW and change.verb == "delete":
            name = name_of(change.key)
            if why := why_not_deleted(copy, name):
                refused[name] = why
    return {f"{FLOW}/{name}": why for name, why in refused.items()}


def transaction(
    copy: SiteCopy, changes: Sequence[Change], push: records.Push, source: PushSource, verb: str
) -> list[Write]:
    """Return the writes. ``push``: other fields of ``/push`` to write. Raises ``ConflictError``."""
    owned = {**push.resources}
    for change in changes:
        if change.owned_after is None:
            owned.pop(change.key, None)
        else:
            owned[change.key] = change.owned_after
    made_by = push.source if verb == "adopt" and push.source else source
    after = replace(push, source=made_by, resources=owned, next_entry=push.next_entry + 1)
    entry = PushEntry(
        verb=verb,
        source=source,
        changes={
            change.key: ResourceChange(
                before=change.before, after=change.owned_after, owned_before=change.owned_before
            )
            for change in changes
        },
    )
    summary = ", ".join(f"{change.verb} {change.key}" for change in changes)
    content = f"inventory {source.inventory} {source.digest}"
    content += f", revision {source.revision}" if source.revision else ""
    command = f"push {verb} {source.push} ({content}): {summary}"
    note = records.Audit(who=source.author, command=command, reason=source.reason, time=source.time)
    return [
        *_schema(copy),
        Put(paths.push(), after, version_of(copy, paths.push())),
        Put(paths.push_entry(entry_name(push.next_entry)), entry, ABSENT),
        *_flows(copy, changes, source),
        *_cluster(copy, changes),
        *_sites(copy, changes),
        *_nodes(copy, changes),
        *_old(copy),
        audit_entry(note),
    ]


def entry_name(number: int) -> str:
    return f"{number:010d}"


def _schema(copy: SiteCopy) -> list[Write]:
    schema = copy.read(paths.schema())
    assert schema is not None
    return [Check(paths.schema(), schema.version)]


def _flows(copy: SiteCopy, changes: Sequence[Change], source: PushSource) -> Iterable[Write]:
    schema = copy.read(paths.schema())
    assert schema is not None
    revisions = next_revisions(with_sites(copy, changes), texts_of(changes))
    revised = revision_writes(revisions, schema, source.author, _reason(source), source.time)
    changed = {revision.flow for revision in revisions if revision.changed}
    confirmed = {
        str(put.path): put for put in _confirmed(copy, changes) if put.path.name not in changed
    }
    composed = {str(write.path) for write in revised}
    yield from (confirmed.get(str(write.path), write) for write in revised)
    yield from (put for path, put in confirmed.items() if path not in composed)
    for change in changes:
        if kind_of(change.key) == FLOW and change.verb == "delete":
            name = name_of(change.key)
            flow = copy.read(paths.flow(name))
            assert flow is not None
            yield from deletion({name: flow, **parts_there(copy, [name])})


def _reason(source: PushSource) -> str:
    return f"push {source.push}: {source.reason}" if source.reason else f"push {source.push}"


def _confirmed(copy: SiteCopy, changes: Iterable[Change]) -> Iterable[Put]:
    """Yield writes by which flows whose present revision is wanted no longer count as gone back."""
    for change in changes:
        if kind_of(change.key) != FLOW or change.verb not in CONFIRMING:
            continue
        name = name_of(change.key)
        flow = copy.read(paths.flow(name))
        every = {**({name: flow} if flow else {}), **parts_there(copy, [name])}
        for part, flow in every.items():
            if flow.value.went_back:
                yield Put(paths.flow(part), replace(flow.value, went_back=""), flow.version)


def texts_of(changes: Iterable[Change]) -> dict[str, str]:
    """Return each changed flow's new text by name."""
    return {
        name_of(change.key): change.after
        for change in _real(changes)
        if kind_of(change.key) == FLOW and change.after is not None
    }


def _cluster(copy: SiteCopy, changes: Sequence[Change]) -> Iterable[Write]:
    """Yield writes of settings and chokes, and checks of the chokes' flows and nodes."""
    stored = copy.read(paths.cluster())
    own = [
        change
        for change in _real(changes)
        if kind_of(change.key) in (SETTING, CHOKE) or _names_cluster(change)
    ]
    if stored is None:
        return
    if not own:
        yield Check(paths.cluster(), stored.version)  # maintenance may begin
        return
    cluster = stored.value
    chokes = dict(cluster.chokes)
    for change in own:
        name = name_of(change.key)
        if kind_of(change.key) == SITE:
            cluster = replace(cluster, site="" if change.after is None else name)
        elif kind_of(change.key) == CHOKE:
            chokes.pop(name, None)
            if change.after is not None:
                chokes[name] = float(change.after)
                yield from _still_there(copy, changes, name)
        else:
            setting = SETTINGS[name]
            cluster = (
                setting.unset(cluster)
                if change.after is None
                else setting.put(cluster, setting.parse(change.after))
            )
    yield Put(paths.cluster(), replace(cluster, chokes=chokes), stored.version)


def _names_cluster(change: Change) -> bool:
    return kind_of(change.key) == SITE and HERE in (change.before, change.after)


def _turn(change: Change) -> int:
    if kind_of(change.key) != SITE:
        return 1
    return 2 if change.after is None else 0


def _sites(copy: SiteCopy, changes: Sequence[Change]) -> Iterable[Write]:
    for change in _real(changes):
        if kind_of(change.key) != SITE or _names_cluster(change):
            continue
        path = paths.site(name_of(change.key))
        stored = copy.read(path)
        if change.after is None:
            yield Remove(path, stored.version if stored else ANY)
            continue
        site = site_of(change.after)
        if stored is not None:
            site = replace(stored.value, gateways=site.gateways, authority=site.authority)
        yield Put(path, site, stored.version if stored else ABSENT)


def make_folders(store: Store, changes: Iterable[Change]) -> None:
    """Make the folders that the first site and the cluster's name need. Raises ConflictError,
    UnavailableError."""
    made = [c for c in changes if kind_of(c.key) == SITE and c.after is not None]
    folders: list[Write] = []
    if any(map(_names_cluster, made)):
        folders += breaks_folder(store)
    if not all(map(_names_cluster, made)) and not store.exists(paths.sites()):
        folders.append(Put(paths.sites(), None, ABSENT))
    if folders:
        store.commit(folders)


def with_sites(copy: SiteCopy, changes: Iterable[Change]) -> SiteCopy:
    """Return the copy as if the changes of sites were made; the versions stay."""
    own = [change for change in _real(changes) if kind_of(change.key) == SITE]
    if not own:
        return copy
    after = SiteCopy(copy.scale, copy.shape)
    after.znodes, after.unreadable = dict(copy.znodes), copy.unreadable
    after.folders = dict(copy.folders)
    names = set(copy.children(paths.sites()))
    for change in own:
        name = name_of(change.key)
        if _names_cluster(change):
            cluster = copy.read(paths.cluster())
            assert cluster is not None, "the state of a site without /cluster is unreadable"
            named = replace(cluster.value, site="" if change.after is None else name)
            after.znodes[str(paths.cluster())] = replace(cluster, value=named)
        elif change.after is None:
            names.discard(name)
            after.znodes.pop(str(paths.site(name)), None)
        else:
            names.add(name)
            made = Versioned(site_of(change.after), Version(0))
            after.znodes[str(paths.site(name))] = made
    after.folders[str(paths.sites())] = sorted(names)
    return after


def _still_there(copy: SiteCopy, changes: Sequence[Change], choke: str) -> Iterable[Write]:
    """Check that a choke's flow and node are unchanged, unless this transaction writes them."""
    flow, _, node = choke.partition("@")
    written = {change.key for change in _real(changes)}
    written.update(f"{FLOW}/{put.path.name}" for put in _confirmed(copy, changes))
    written_nodes = {of_node(key)[0] for key in written if kind_of(key) in (LABEL, CAPACITY)}
    if f"{FLOW}/{flow}" not in written and flow in copy.children(paths.flows()):
        stored = copy.read(paths.flow(flow))
        if stored is not None:
            yield Check(paths.flow(flow), stored.version)
    if node and node not in written_nodes:
        registered = copy.read(paths.node(node))
        if registered is not None:
            yield Check(paths.node(node), registered.version)


def nodes_of(copy: SiteCopy, changes: Iterable[Change]) -> dict[str, records.Node]:
    """Return the records of changed nodes with the new labels and capacities, by name."""
    nodes: dict[str, records.Node] = {}
    for change in _real(changes):
        if kind_of(change.key) not in (LABEL, CAPACITY):
            continue
        node, name = of_node(change.key)
        stored = copy.read(paths.node(node))
        assert stored is not None, f"{node} waits to be registered"
        record = nodes.get(node, stored.value)
        if kind_of(change.key) == LABEL:
            record = replace(record, labels=_with(record.labels, name, change.after))
        else:
            amount = None if change.after is None else float(change.after)
            record = replace(record, capacity=_with(record.capacity, name, amount))
        nodes[node] = record
    return nodes


def _nodes(copy: SiteCopy, changes: Sequence[Change]) -> Iterable[Write]:
    for node, record in nodes_of(copy, changes).items():
        stored = copy.read(paths.node(node))
        assert stored is not None
        yield Put(paths.node(node), record, stored.version)


def _with(before: Mapping[str, V], name: str, value: V | None) -> dict[str, V]:
    others = {key: other for key, other in before.items() if key != name}
    return others if value is None else {**others, name: value}


def _real(changes: Iterable[Change]) -> list[Change]:
    """Return the changes that alter a resource itself."""
    return [change for change in changes if change.verb in ("make", "change", "delete")]


def _old(copy: SiteCopy) -> Iterable[Write]:
    """Remove old push entries; masters trim the audit."""
    for name in copy.children(paths.push())[: -KEEP_ENTRIES + 1][:REMOVED_AT_ONCE]:
        yield Remove(paths.push_entry(name), ANY)


def version_of(copy: SiteCopy, path: Path) -> Expected:
    stored = copy.znodes[str(path)]
    return stored.version if stored else ABSENT
