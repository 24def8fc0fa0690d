"""The contract of connectors and filters as tests: extend a class for each component of a plug-in.

Each class runs a component as flumeng does, without ZooKeeper and Spark, through the public
contract ``flumeng.connectors.api`` only.
"""

from flumeng_testkit.component import ComponentContract
from flumeng_testkit.filter import FilterContract
from flumeng_testkit.ranged_input import RangedInputContract
from flumeng_testkit.sink import SinkContract
from flumeng_testkit.source import SourceContract

__all__ = [
    "ComponentContract",
    "FilterContract",
    "RangedInputContract",
    "SinkContract",
    "SourceContract",
]
