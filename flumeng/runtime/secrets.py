"""Secrets, which inventories and flows only refer to: ``${secret:NAME}``.

A secret is looked up on the host that uses it: in the environment variable
``FLUMENG_SECRET_<NAME>``, in capitals and with underscores for dashes, else in the file NAME of the
directory that ``FLUMENG_SECRETS`` names. No message here shows one.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from flumeng.errors import UserError
from flumeng.spec.patterns import SECRET

DIRECTORY = "FLUMENG_SECRETS"
PREFIX = "FLUMENG_SECRET_"
MAX_BYTES = 64 * 1024


def resolve(reference: str) -> str:
    """The secret that ``${secret:NAME}`` refers to, without the line end of its file. Raises
    ``UserError``: it is nowhere, or its file is open to others."""
    form = SECRET.fullmatch(reference)
    if form is None:
        raise UserError("expected a reference to a secret, like ${secret:fra-zookeeper}")
    name = form[1]
    variable = PREFIX + name.upper().replace("-", "_")
    found = os.environ.get(variable)
    directory = os.environ.get(DIRECTORY)
    if not found and directory:
        found = _content(Path(directory) / name)
    if not found:
        where = Path(directory) / name if directory else f"the file {name} in ${DIRECTORY}"
        raise UserError(f"there is no secret {name}: set {variable}, or write it to {where}")
    return found


def _content(path: Path) -> str | None:
    """What is in the file of a secret; None when there is no such file."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # noqa: PTH123  at once
            state = os.fstat(file.fileno())
            content = file.read(MAX_BYTES + 1) if stat.S_ISREG(state.st_mode) else b""
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"the secret {path} cannot be read: {error.strerror}") from error
    if state.st_mode & 0o077:
        raise UserError(f"the secret {path} is open to others: chmod 600 {path}")
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise UserError(f"the secret {path} is not UTF-8") from None
    if len(content) > MAX_BYTES:
        raise UserError(f"the secret {path} is larger than {MAX_BYTES // 1024} KiB")
    return text.removesuffix("\n").removesuffix("\r")
