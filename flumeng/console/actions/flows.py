"""Actions on flows and their rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

from msgspec import Meta

from flumeng.config import SpecError, check_flow, parse_written
from flumeng.config.guarantees import promise
from flumeng.console.actions.action import (
    Act,
    Action,
    Answer,
    Field,
    Foreseen,
    Given,
    Line,
    Lines,
    Name,
    Number,
    Text,
    lines_of,
    says,
)
from flumeng.console.actions.words import confirmed
from flumeng.console.console import Console, lent
from flumeng.control.commands import acks, flows, preview, rollouts, settings
from flumeng.control.commands.lookup import require_flow
from flumeng.control.commands.operator import Operator
from flumeng.control.queries import offset_lookup, state_changes, target_checks
from flumeng.control.queries.history import difference, text_difference
from flumeng.control.zookeeper import ReadableStore, Store
from flumeng.platform.errors import UserError
from flumeng.platform.options.problems import Problem

FLOW_PAGE = "/flows/{flow}"
Rate = Annotated[str, Meta(pattern=r"^(off|[0-9.]{1,12} ?[A-Za-z]{0,3}(/s)?)$")]
TEXT = Field("text", "The whole flow file.", Text, required=True, words=lambda *_: [])
MOST_SHOWN = 50


def promised(text: str) -> list[str]:
    """Return the guarantees of a flow, in sentences. Raises SpecError."""
    check_flow(text)
    return [*promise(parse_written(text))]


def _checked(text: str) -> tuple[str | None, Sequence[Problem], Sequence[str]]:
    """Return the flow's name, its problems, and its guarantees."""
    try:
        return check_flow(text).flow, (), promised(text)
    except SpecError as error:
        return None, error.problems, ()


def _validate(_console: Console, _operator: Operator, given: Given) -> Answer:
    flow, problems, promises = _checked(given["text"])
    return Answer({"flow": flow, "problems": [*map(asdict, problems)], "promises": [*promises]})


def _validated(_console: Console, _store: ReadableStore, given: Given) -> Foreseen:
    flow, problems, promises = _checked(given["text"])
    return Foreseen([*map(str, problems)] or [f"flow {flow} is valid", *promises])


def _text_of(given: Given) -> str:
    text: str = given["text"]
    named = check_flow(text).flow
    if named != given["flow"]:
        raise UserError(f"the text is of flow {named}, not of flow {given['flow']}")
    return text


def _apply(console: Console, operator: Operator, given: Given) -> Answer:
    text = _text_of(given)
    warning = _check_columns(console, operator.store, text)
    if given.get("check_targets"):
        checked = target_checks.check_targets(
            operator.store, console.asking.targets, check_flow(text), text
        )
        if failed := [target for target in checked if target.state == "failed"]:
            raise target_checks.TargetsFailedError(failed)
    applied = [row for part in flows.apply_flows(operator, {given["flow"]: text}) for row in part]
    return Answer({"flows": [*map(asdict, applied)], "warning": warning})


def _check_columns(console: Console, store: Store, text: str) -> str:
    """Check a flow that is read after the filters of another site; return a warning."""
    sources = check_flow(text).sources
    if not any(part.options.remote and part.options.filtered_by for part in sources):
        return ""
    return lent(console.connectors, "flow apply").check_columns(store, text)


def _applying(_console: Console, store: ReadableStore, given: Given) -> Foreseen:
    text = _text_of(given)
    planned = preview.apply(store, {given["flow"]: text})
    return Foreseen(
        [*lines_of(planned), *promised(text)], planned, text_difference(store, given["flow"], text)
    )


def _rollback(_console: Console, operator: Operator, given: Given) -> Answer:
    applied = flows.rollback_flow(operator, given["flow"], given["revision"])
    return Answer(asdict(applied))


def _rolling_back(_console: Console, store: ReadableStore, given: Given) -> Foreseen:
    flow, number = given["flow"], given["revision"]
    text = flows.rollback_text(store, flow, number)
    planned = preview.apply(store, {flow: text})
    current = require_flow(store, flow).value.revision
    diff = difference(store, flow, current, number).diff
    return Foreseen(lines_of(planned), planned, diff)


def _delete(_console: Console, operator: Operator, given: Given) -> Answer:
    flow, discard = given["flow"], bool(given.get("discard"))
    changed = flows.delete_flow(operator, flow, discard=discard)
    return Answer({"flow": flow, "changed": changed, "discard": discard})


def _deleting(_console: Console, _store: ReadableStore, given: Given) -> Foreseen:
    return Foreseen([flows.deletion(given["flow"], discard=bool(given.get("discard")))])


def _choke(_console: Console, operator: Operator, given: Given) -> Answer:
    rate = settings.parse_rate(given["rate"])
    changed = settings.set_choke(operator, given["flow"], rate, given.get("node"))
    return Answer(
        {"flow": given["flow"], "node": given.get("node"), "rate": rate, "changed": changed}
    )


def _choking(_console: Console, _store: ReadableStore, given: Given) -> Foreseen:
    where = f"node {given['node']} accepts" if given.get("node") else "each node accepts"
    if settings.parse_rate(given["rate"]) is None:
        return Foreseen([f"{where} of flow {given['flow']} as much as its journal takes"])
    return Foreseen(
        [
            f"{where} at most {given['rate']} per second of flow {given['flow']}",
            "senders are held back as by a full journal",
        ]
    )


def _hand_off(_console: Console, operator: Operator, given: Given) -> Answer:
    return Answer({"flow": given["flow"], "handoff": flows.hand_off(operator, given["flow"])})


def _resolved(
    console: Console, store: Store, given: Given
) -> tuple[tuple[acks.Reset, ...], offset_lookup.Resolved]:
    flow = given["flow"]
    acks.require_resting(store, flow)
    point = offset_lookup.parse_point(given["to"])
    resolved = offset_lookup.resolve(
        store,
        flow,
        point,
        given.get("partitions", ()),
        ask=console.asking.accounts,
        ask_offsets=console.asking.offsets,
    )
    return acks.resets(store, flow, resolved.offsets), resolved


def _reset(console: Console, operator: Operator, given: Given) -> Answer:
    flow = given["flow"]
    changes, resolved = _resolved(console, operator.store, given)
    if changes:
        changes = acks.reset_acks(operator, flow, resolved.offsets)
    if resolved.accepted:
        acks.accept(operator, flow, resolved.accepted)
    return Answer(acks.reset_document(flow, resolved.offsets, changes, resolved.accepted))


def _resetting(console: Console, _store: ReadableStore, given: Given) -> Foreseen:
    changes, resolved = _resolved(console, console.store, given)
    accepted = [f"{name} is accepted, from {to} on" for name, to in resolved.accepted.items()]
    lines = [
        f"{each}: {each.skipped} skipped, {each.repeated} repeated" for each in changes[:MOST_SHOWN]
    ]
    more = len(changes) - len(lines)
    lines += [f"and {more} more partitions"] if more > 0 else []
    planned = acks.reset_document(given["flow"], resolved.offsets, changes, resolved.accepted)
    return Foreseen([acks.total(changes), *accepted, *lines], planned)


def _rollout(verb: rollouts.Verb) -> Act:
    def act(_console: Console, operator: Operator, given: Given) -> Answer:
        changed = rollouts.change_rollout(operator, given["flow"], verb)
        return Answer({"flow": given["flow"], "changed": changed})

    return act


def _abort(_console: Console, operator: Operator, given: Given) -> Answer:
    before = rollouts.abort_rollout(operator, given["flow"])
    return Answer({"flow": given["flow"], "changed": True, "back_to": before})


def _rollout_action(verb: str, title: str, doc: str, act: Act) -> Action:
    return Action(
        f"rollout-{verb}",
        f"/flows/{{flow}}/rollout/{verb}",
        title,
        doc,
        f"flow rollout {verb} {{flow}}",
        says(f"flow {{flow}}: {doc[0].lower()}{doc[1:]}"),
        act,
        FLOW_PAGE,
        if_revision=True,
    )


def _state_action(verb: str, state: str, doc: str) -> Action:
    def foresee(_console: Console, store: ReadableStore, given: Given) -> Foreseen:
        return Foreseen([*state_changes.changes(store, [given["flow"]], state).values()])

    def act(_console: Console, operator: Operator, given: Given) -> Answer:
        changed = flows.set_flow_state(operator, given["flow"], state)
        return Answer(flows.StateOutcome(given["flow"], changed).document)

    return Action(
        f"flow-{verb}",
        f"/flows/{{flow}}/{verb}",
        verb.capitalize(),
        doc,
        f"flow {verb} {{flow}}",
        foresee,
        act,
        FLOW_PAGE,
        if_revision=True,
    )


ACTIONS: tuple[Action, ...] = (
    Action(
        "flow-validate", "/flows/validate", "Check a flow file",
        "List all problems of a flow's text, or its promises.",
        "flow validate flow.yaml", _validated, _validate, "/flows", (TEXT,), changes=False,
    ),
    Action(
        "flow-apply", "/flows/{flow}/apply", "Apply a flow",
        "Make the text the current revision of its flow; a new flow starts to run.",
        "flow apply {flow}.yaml", _applying, _apply, FLOW_PAGE,
        (
            TEXT,
            Field(
                "check_targets",
                "Check the targets from a node first; apply only if all can be used.",
                bool,
            ),
        ),
        if_revision=True,
    ),
    Action(
        "flow-rollback", "/flows/{flow}/rollback", "Roll back",
        "Make a new revision with the text of an older one; its isolated parts follow.",
        "flow rollback {flow} {revision}", _rolling_back, _rollback, FLOW_PAGE,
        (Field("revision", "The revision whose text returns.", Number, required=True),),
        if_revision=True,
    ),
    _state_action("pause", "suspended", "Stop collecting; sources still write to the journals."),
    _state_action("resume", "running", "Let a paused or stopped flow run again."),
    _state_action(
        "stop", "stopped", "Stop the sources and collect all accepted events; the flow stays."
    ),
    Action(
        "flow-delete", "/flows/{flow}/delete", "Delete",
        "Delete a flow with its isolated parts, once all its accepted events are in its sinks.",
        "flow delete {flow}", _deleting, _delete, FLOW_PAGE,
        (Field("discard", "Drop events that are not in the sinks yet.", bool, words=confirmed),),
        if_revision=True,
    ),
    Action(
        "flow-choke", "/flows/{flow}/choke", "Limit the rate",
        "Limit the bytes per second that each node accepts of a flow, while it runs.",
        "flow choke {flow} {rate}", _choking, _choke, FLOW_PAGE,
        (
            Field("rate", "Bytes per second of each node, such as 10MB; or off.", Rate, True),
            Field("node", "Only there; precedes the limit for all nodes.", Name),
        ),
    ),
    Action(
        "flow-handoff", "/flows/{flow}/handoff", "Deliver now",
        "Deliver now all events that the flow has read, without waiting for its batches to fill.",
        "flow handoff {flow}", says("flow {flow}: its tasks deliver all events read so far"),
        _hand_off, FLOW_PAGE, if_revision=True,
    ),
    Action(
        "flow-reset", "/flows/{flow}/reset", "Move to other offsets",
        "Move a paused or stopped flow to other offsets: events are skipped, or delivered again.",
        "flow reset {flow} --to {to}", _resetting, _reset, FLOW_PAGE,
        (
            Field("to", "earliest, latest, a time with its zone, or orders.3=1200.", Line, True),
            Field("partitions", "Only partitions that match these patterns.", Lines),
        ),
        if_revision=True,
    ),
    _rollout_action(
        "pause",
        "Pause the rollout",
        "No further task takes the new revision; tasks that have it keep it.",
        _rollout("pause"),
    ),
    _rollout_action(
        "resume", "Resume the rollout", "A paused rollout goes on.", _rollout("resume")
    ),
    _rollout_action(
        "promote",
        "Complete the rollout",
        "All tasks take the new revision now, without further proof.",
        _rollout("promote"),
    ),
    _rollout_action(
        "abort",
        "Abort the rollout",
        "All tasks go back to the revision that they ran before.",
        _abort,
    ),
)  # fmt: skip
