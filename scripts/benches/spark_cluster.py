"""The same journal through the same collector, in its own process on two cores and on a standalone
cluster of two workers of one core each, whose Python has no flumeng.

``cluster_ratio`` is events a second there over those of ``local[2]``. Each runs twice, in turns,
and its better run counts. What the lakes have in the end is counted.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pyarrow.dataset as ds

from benches import collecting
from tests.testkit.spark_cluster import StandaloneCluster

TURNS = 2
REQUIREMENTS = Path(__file__).parents[2] / "conf" / "spark" / "executors.txt"


def measure(events: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="flumeng-bench-") as folder:
        place = Path(folder)
        collecting.fill(place / "journals" / "0", events)
        rates: dict[str, list[float]] = {"local": [], "cluster": []}
        for turn in range(TURNS):
            rates["local"].append(_rate(place, f"local{turn}", events, {"master": "local[2]"}))
            cluster = StandaloneCluster(place / f"spark{turn}", REQUIREMENTS)
            cluster.start()
            try:
                texts = {"master": cluster.address, "python": cluster.python, "cores": "2"}
                rates["cluster"].append(_rate(place, f"cluster{turn}", events, texts))
            finally:
                cluster.stop()
    best = {name: max(of) for name, of in rates.items()}
    return {
        "local_events_per_second": round(best["local"]),
        "cluster_events_per_second": round(best["cluster"]),
        "cluster_ratio": round(best["cluster"] / best["local"], 2),
    }


def _rate(place: Path, flow: str, events: int, texts: dict[str, str]) -> float:
    policy, lake = place / f"{flow}.yaml", place / f"lake-{flow}"
    allowed = {}
    if "python" in texts:
        allowed = {"masters": [texts["master"]], "python": [texts["python"]]}
    policy.write_text(json.dumps({"spark": allowed}))
    more = ["--spark", json.dumps(texts), "--policy", str(policy)]
    sink = f'files: {{path: "{lake}", shared: true}}'
    found = collecting.measure(place, flow, "exactly-once", sink, events, more=more)
    assert (rows := int(ds.dataset(lake).count_rows())) == events, f"{rows} of {events}"
    return float(found["rate"])
