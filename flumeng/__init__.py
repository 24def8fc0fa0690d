"""flumeng: logs and events from many hosts into lakes and search indexes.

The library and the daemons. What lives in ZooKeeper is described by the package ``zkschema``,
what an operator types by the package ``cli``.
"""

from importlib.metadata import version

__version__ = version("flumeng")
