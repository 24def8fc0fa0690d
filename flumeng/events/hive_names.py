"""Values as parts of a path, as Hive and Spark write and read them: ``app=a%2Fb``."""

from __future__ import annotations

import hashlib
import re

NOTHING = "__HIVE_DEFAULT_PARTITION__"
MOST_BYTES = 200
"""File systems take names of 255 bytes."""
_ESCAPED = re.compile(r"""[\x00-\x1f"#%'*/:=?\\\x7f{}\[\]^]|^[._]""")


def hive_name(value: str) -> str:
    """A value in a path; none, or an empty one, is NOTHING.

    A first dot or underscore is escaped too, since readers pass over names that begin so. The end
    of a long value is a hash of it.
    """
    if not value:
        return NOTHING
    name = _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", value)
    if len(name.encode()) <= MOST_BYTES:
        return name
    digest = hashlib.blake2b(value.encode(), digest_size=8).hexdigest()
    kept = name.encode()[: MOST_BYTES - 17].decode("utf-8", "ignore")
    return f"{re.sub('%[0-9A-F]?$', '', kept)}~{digest}"
