"""Implements ``Input`` for Kafka. librdkafka is loaded with the first flow that reads Kafka."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from flumeng.config import FlowSpec
from flumeng.connectors.api.ranged import Positions
from flumeng.connectors.kafka.source_options import KafkaSource
from flumeng.connectors.ranged.reading import Reader

if TYPE_CHECKING:
    from flumeng.connectors.kafka.positions import Watchers


class KafkaInput:
    """Implements ``Input``. Methods raise UserError when the package is not installed."""

    def positions(self, wake: Callable[[], None]) -> Positions:
        from flumeng.connectors.kafka.positions import KafkaPositions  # noqa: PLC0415

        return KafkaPositions(self._watchers, wake)

    def reader(self, spec: FlowSpec) -> Reader | None:
        if not any(isinstance(part.options, KafkaSource) for part in spec.partitioned):
            return None
        from flumeng.connectors.kafka.positions import reader_of  # noqa: PLC0415

        return reader_of(spec)

    @functools.cached_property
    def _watchers(self) -> Watchers:
        from flumeng.connectors.kafka.positions import Watchers  # noqa: PLC0415

        return Watchers()
