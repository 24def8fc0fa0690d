"""Hook of the docs' site (mkdocs.yml): a search finds how-to pages first, and answers questions.

The theme indexes the tags of a page beside its titles, and shows them below a result. The words of
a question need not be in the page. ``scripts/docs`` searches the built site for each question.
"""

from __future__ import annotations

import logging
from typing import Any

QUESTIONS: dict[str, list[str]] = {
    "explanation/guarantees.md": ["is kafka exactly once"],
    "how-to/back-up-and-restore.md": ["restore zookeeper from backup"],
    "how-to/batch-that-cannot-finish.md": ["a task is stuck"],
    "how-to/change-a-flow.md": ["go back to the previous version of a flow"],
    "how-to/change-many-sites.md": ["push to many data centres"],
    "how-to/damaged-journal.md": ["a journal is corrupt"],
    "how-to/dead-letters.md": ["where are the dead letters", "replay rejected events"],
    "how-to/delete-a-flow.md": ["remove a flow"],
    "how-to/drain-a-node.md": ["how do I drain a node", "take a host out of service"],
    "how-to/encrypt-journals.md": ["encrypt events on disk"],
    "how-to/enrich-events.md": ["look up the country of an address"],
    "how-to/fail-over-a-site.md": ["a data centre is down"],
    "how-to/from-druid.md": ["migrate from druid"],
    "how-to/from-flume.md": ["migrate from flume"],
    "how-to/from-kafka-connect.md": ["migrate from kafka connect"],
    "how-to/give-operators-some-flows.md": ["give a user access to one flow"],
    "how-to/install-on-hosts.md": ["which ports must be open"],
    "how-to/join-lines.md": ["stack trace of several lines"],
    "how-to/look-at-a-cluster.md": ["why is a flow behind", "why is a task waiting"],
    "how-to/maintenance.md": ["limit bytes per second", "reboot a host"],
    "how-to/monitor.md": ["alert when a disk is full"],
    "how-to/notebooks.md": ["read events in jupyter"],
    "how-to/parse-logs.md": ["parse nginx logs"],
    "how-to/read-again.md": ["reset offsets", "replay or rewind a topic"],
    "how-to/replace-a-lost-host.md": ["replace a dead host"],
    "how-to/restrict-a-host.md": ["forbid commands on a host"],
    "how-to/roll-out-a-revision.md": ["canary release of a flow"],
    "how-to/run-on-a-spark-cluster.md": ["run on a spark cluster"],
    "how-to/scale-a-flow.md": ["add tasks to a flow"],
    "how-to/secrets.md": ["store a password"],
    "how-to/sign-revisions.md": ["sign revisions"],
    "how-to/size-a-cluster.md": ["how big must a host be", "how much disk and memory"],
    "how-to/test-a-flow.md": ["test the filters of a flow"],
    "how-to/tls.md": ["rotate certificates"],
    "how-to/unreadable-record.md": ["a znode is corrupt"],
    "how-to/upgrade.md": ["upgrade without loss"],
    "how-to/watch-events.md": ["see live events of a flow"],
    "how-to/write-a-plug-in.md": ["write my own filter or sink"],
    "reference/exit-codes.md": ["what does exit code 3 mean"],
    "reference/filters.md": ["mask credit card numbers"],
}


def on_files(files: Any, **_: object) -> None:
    for page in QUESTIONS:
        if files.get_file_from_path(page) is None:
            logging.getLogger("mkdocs.hooks").error(
                "questions of a page that is not there: %s", page
            )


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    if page.file.src_uri.startswith("how-to/"):
        page.meta.setdefault("search", {"boost": 3})
    if questions := QUESTIONS.get(page.file.src_uri):
        page.meta["tags"] = questions
    return markdown
