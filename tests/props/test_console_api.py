"""The API keeps its own description: valid requests are answered by schema, others are refused.

schemathesis makes the requests; half of the names in them are those of a filled cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from openapi_spec_validator import validate
from schemathesis.config import SchemathesisConfig
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode

from flumeng.console.api.openapi import document
from flumeng.console.app import make_app
from flumeng.console.who.viewers import Viewer
from tests.testkit.filled_cluster import J, filled_cluster

EXAMPLES = 5
NAMES = {
    "flow": ["web", "objects", "copy", "hurt", "gone"],
    "node": ["n1", "n2", "n3"],
    "task": ["collect.0", "collect.1", "discover"],
    "journal": [J],
    "cursor": ["lon:copy", "main"],
    "site": ["fra"],
    "component": ["kafka", "batch", "flow"],
}
OTHERS = {"/events", "/openapi.json"}
"""An endless answer, and the description itself."""
DAMAGED = "hurt"
"""A change of this flow is answered with 500, as its plan is damaged; reads show that."""
STATUSES = ["2xx", "304", "403", "404", "409", "412", "422"]
"""Of valid requests: the state of the cluster may forbid what they ask for."""


@pytest.fixture(scope="module")
def operations(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, list[Any]]:
    """The operations by path, on a filled cluster."""
    cluster = filled_cluster(tmp_path_factory.mktemp("cluster"))
    app = make_app(cluster.console, lambda _request: Viewer("ann", "admin"))
    config = SchemathesisConfig.from_dict(
        {"checks": {"positive_data_acceptance": {"expected-statuses": STATUSES}}}
    )
    schema = schemathesis.openapi.from_asgi("/api/v1/openapi.json", app, config=config)
    found: dict[str, list[Any]] = {}
    for result in schema.get_all_operations():
        assert isinstance(result, Ok), result
        found.setdefault(result.ok().path, []).append(result.ok())
    return found


def test_the_description_is_valid_openapi() -> None:
    described: Any = document()
    validate(described)


@pytest.mark.parametrize("path", sorted(document()["paths"].keys() - OTHERS))
def test_an_operation_keeps_its_description(path: str, operations: Mapping[str, list[Any]]) -> None:
    for operation in operations[path]:
        _call(operation, GenerationMode.POSITIVE)
        if operation.query or operation.body:
            _call(operation, GenerationMode.NEGATIVE)


def _call(operation: Any, mode: GenerationMode) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode), number=st.integers(0, 99))
    def call(case: Any, number: int) -> None:
        for name in case.path_parameters or {}:
            if number % 2 and name in NAMES:
                known = [each for each in NAMES[name] if each != DAMAGED or case.method == "GET"]
                case.path_parameters[name] = known[number // 2 % len(known)]
        case.call_and_validate()

    call()
