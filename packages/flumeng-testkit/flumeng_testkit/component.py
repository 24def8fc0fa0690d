"""The contract of every component's options."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from flumeng.config import parse_flow, registry
from flumeng.platform.options.option import described


class ComponentContract:
    """Tests of a component's options. ``name`` is the component's name in flows."""

    kind: ClassVar[Literal["source", "filter", "sink"]]
    name: ClassVar[str]

    def options(self, folder: Path) -> Mapping[str, Any]:
        """Return the options as in a flow file. ``folder`` is an empty directory of the test."""
        raise NotImplementedError

    def made(self, folder: Path) -> Any:
        """Return an instance of the option class, parsed from a flow."""
        parts: dict[str, Any] = {"source": "generate", "filter": None, "sink": "noop"}
        parts[self.kind] = {self.name: self.options(folder)}
        flow = {"flow": "contract"} | {f"{kind}s": [part] for kind, part in parts.items() if part}
        spec = parse_flow(json.dumps(flow))
        (component,) = {"source": spec.sources, "filter": spec.filters, "sink": spec.sinks}[
            self.kind
        ]
        return component.options

    def test_component_is_found_by_its_entry_point(self) -> None:
        entry = registry.find(self.kind, self.name)
        assert entry is not None, f"no entry point for the {self.kind} {self.name}"
        assert entry.fault() == ""

    def test_every_option_is_documented(self) -> None:
        cls = registry.get(self.kind, self.name).options_class()
        assert (cls.__doc__ or "").strip(), (
            "the class needs a docstring: `flumeng components` shows it"
        )
        for field in dataclasses.fields(cls):
            assert described(field).doc.endswith("."), f"the doc of {field.name} ends with a dot"

    def test_options_are_read_from_a_flow(self, tmp_path: Path) -> None:
        assert isinstance(self.made(tmp_path), registry.get(self.kind, self.name).options_class())

    def test_options_load_no_data_library(self) -> None:
        """Masters and the command line import options, and must stay small."""
        module = registry.get(self.kind, self.name).options.partition(":")[0]
        code = (
            f"import sys, {module}; print(*({{'pyarrow', 'pyspark', 'numpy'}} & {{*sys.modules}}))"
        )
        run = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert run.stdout.split() == []
