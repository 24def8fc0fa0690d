"""Arrow without pandas, and with it again. Each in a process of its own: Arrow decides once."""

from __future__ import annotations

import subprocess
import sys

LEFT_OUT = """
import sys
from flumeng.platform import arrow_pandas
arrow_pandas.leave_out()
import pyarrow as pa
import pyarrow.dataset
pa.array(["a", None]), pa.RecordBatch.from_pylist([{"a": 1}]), pa.scalar(1)
print("pandas" in sys.modules)
"""
TAKEN_IN = """
from flumeng.platform.user_functions import imported
from flumeng.platform import arrow_pandas
arrow_pandas.leave_out()
imported("shutil:copy")
import pandas as pd
import pyarrow as pa
print(pa.array(pd.Series([1.0, float("nan")])).null_count)
"""


FORKS = """
import sys
from pyspark import daemon
from flumeng.agent.collector import worker_daemon
daemon.manager = lambda: print("pandas" in sys.modules)
worker_daemon.main()
"""


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or done.stderr


def test_no_array_of_python_values_loads_pandas() -> None:
    assert run(LEFT_OUT) == "False"


def test_users_functions_give_arrow_what_is_missing_in_a_series() -> None:
    """Without pandas Arrow takes NaN in a Series for a number."""
    assert run(TAKEN_IN) == "1"


def test_spark_workers_have_pandas_for_plug_ins_alone() -> None:
    assert run(FORKS) == "False"
    assert run(f"import os\nos.environ['flumeng_plug_ins'] = 'yes'\n{FORKS}") == "True"
