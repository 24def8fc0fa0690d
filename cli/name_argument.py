"""The type of an argument that names something in the cluster, and completes itself."""

from __future__ import annotations

import os

import click
from click.shell_completion import CompletionItem

from cli.context import CliContext


class Name(click.types.StringParamType):
    """The type of an argument that names a flow, a node or a task."""

    def __init__(self, kind: str) -> None:
        self.name = kind

    def shell_complete(
        self,
        ctx: click.Context,
        param: click.Parameter,  # noqa: ARG002  click's
        incomplete: str,
    ) -> list[CompletionItem]:
        hosts = ctx.params.get("hosts") or os.environ.get("FLUMENG_ZK")
        context = ctx.find_object(CliContext) or CliContext()
        known = context.names(hosts).get(self.name, ()) if hosts else ()
        return [CompletionItem(name) for name in known if name.startswith(incomplete)]
