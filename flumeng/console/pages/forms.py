"""Reads the fields of a form."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request


async def form_of(request: Request) -> Mapping[str, str]:
    """Return the text fields of a form, the last of each name. Raises HTTPException for too many
    fields; the gate bounds the body."""
    form = await request.form(max_files=0, max_fields=100)
    return {name: value for name, value in form.items() if isinstance(value, str)}
