"""Spark's own web interface: off unless asked for, on loopback only, and read-only.

It asks nobody who they are, and shows the settings and the plans of jobs: whoever can reach it may
see it. So it listens on 127.0.0.1, wherever Spark's driver listens for executors, and behind a
proxy of the user's that is what the proxy connects to.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from flumeng.config.spark import SparkOptions

HOST = "127.0.0.1"
RETAINED: Mapping[str, str] = {
    "spark.ui.retainedJobs": "500",
    "spark.ui.retainedStages": "500",
    "spark.ui.retainedTasks": "500",
    "spark.ui.retainedDeadExecutors": "20",
    "spark.sql.ui.retainedExecutions": "50",
}
"""Spark remembers so much of what is over, also without its interface; so many tasks of a stage."""


def settings(options: SparkOptions) -> dict[str, str]:
    """What Spark is started with."""
    if not options.ui:
        return {**RETAINED, "spark.ui.enabled": "false"}
    found = {
        **RETAINED,
        "spark.ui.enabled": "true",
        "spark.ui.killEnabled": "false",
        "spark.ui.port": str(options.ui_port),
    }
    if options.ui_url is not None:
        url = urlsplit(options.ui_url)
        found["spark.ui.proxyRedirectUri"] = f"{url.scheme}://{url.netloc}"
        found["spark.ui.proxyBase"] = url.path.rstrip("/")
    return found


def environment(options: SparkOptions) -> dict[str, str]:
    """What the JVM finds in its environment: nothing else says where the interface listens."""
    return {"SPARK_LOCAL_IP": HOST} if options.ui else {}


def address(spark: SparkSession) -> str:
    """Where the interface is to be seen; an empty text without one."""
    if (served := spark.sparkContext.uiWebUrl) is None:
        return ""
    proxy = spark.conf.get("spark.ui.proxyRedirectUri", None)
    if proxy is None:
        return f"http://{HOST}:{urlsplit(served).port}"
    return proxy + (spark.conf.get("spark.ui.proxyBase", None) or "")
