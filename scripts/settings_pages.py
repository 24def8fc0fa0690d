"""Reference pages of cluster settings, environment variables and exit codes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cli.lazy import EXIT_CODES
from flumeng.config.option_docs import option_rows
from flumeng.config.spark import SparkOptions
from flumeng.control.commands.settings import SETTINGS, NumberSetting, shown
from flumeng.fleet.plan import CHANGES
from flumeng.platform import fail_fast, watchdog
from rooms import TOP
from zkschema.records import Cluster

VARIABLES = {
    "FLUMENG_ZK": "The cluster, `HOST:PORT[,HOST:PORT]/CHROOT`, where `--zk` is not given.",
    "FLUMENG_INVENTORY": "The inventory of sites, where `--inventory` is not given.",
    "FLUMENG_IDENTITY": "The directory with the certificate, key and authorities of this process "
    "or person. Without it connections are in plain text.",
    "FLUMENG_INSECURE": "For `flumeng node run`: as `--insecure`.",
    "FLUMENG_WARM_COLLECTOR": "For `flumeng node run`: `no` is as `--no-warm-collector`.",
    "FLUMENG_AUTHORITY": "The directory of the authority, for `flumeng cluster secure`.",
    "FLUMENG_SIGNING_KEY": "The file of the key that signs the revisions of flows.",
    "FLUMENG_SECRET_": "The secret `name`, in capitals, with underscores for dashes. The policy "
    "file of a node may have another place for it.",
    "FLUMENG_SECRETS": "A directory of files, each a secret by its name.",
    "FLUMENG_CACHE": "The directory of the archive of Java classes; by default `cache` in the data "
    "directory.",
    "FLUMENG_DUE": "Set for the command of a source `exec` with a schedule: the due time.",
    "FLUMENG_SINCE": "Set for that command: the latest due time before, whose lines were taken.",
}
"""Each name in quotes in the code; one that ends with an underscore is a prefix."""


def settings() -> str:
    return "\n".join([*_numbers(), *_spark(), *_variables()]) + "\n"


def exit_codes() -> str:
    """Exit codes of commands, by the kind of error, and of daemons."""
    kinds: dict[int, list[str]] = {}
    for kind, code in EXIT_CODES:
        kinds.setdefault(code, []).append(" ".join((kind.__doc__ or "").split()))
    meanings = {code: " ".join(texts) for code, texts in kinds.items()}
    meanings[0] = "Done."
    meanings[1] = "Failed: any other error, or a check that found a problem."
    meanings[CHANGES] = "Only `flumeng push plan`: there are changes."
    meanings[fail_fast.EXIT_CODE] = "A daemon, after an unexpected error; its log has the cause."
    meanings[watchdog.EXIT_CODE] = "A daemon, since its main loop did not go on."
    lines = ["A script learns from the exit code who has to act, and whether to try again.\n"]
    lines += ["| code | meaning |", "|---|---|"]
    lines += [f"| {code} | {meanings[code]} |" for code in sorted(meanings)]
    lines.append("\nWith several sites the code is 4 when one of them cannot be read.")
    return "\n".join(lines) + "\n"


def _numbers() -> Iterator[str]:
    yield "All settings of a cluster, and the environment variables that processes read.\n"
    yield "`flumeng cluster show` prints the settings, `flumeng cluster set KEY VALUE` sets one.\n"
    yield "## Settings of a cluster\n"
    yield "Seconds and shares are numbers without a unit.\n"
    yield "| key | value | default | meaning |"
    yield "|---|---|---|---|"
    for setting in SETTINGS.values():
        if isinstance(setting, NumberSetting):
            doc = f"{setting.doc[0].upper()}{setting.doc[1:]}."
            default = shown(setting.get(Cluster()))
            yield f"| `{setting.key}` | {setting.range} | `{default}` | {doc} |"
    yield ""


def _spark() -> Iterator[str]:
    yield "## Settings of Spark\n"
    yield f"{' '.join((SparkOptions.__doc__ or '').split())}"
    yield "A value is YAML on one line. With `--node NODE` a setting is of that node alone.\n"
    yield "| key | value | default | meaning |"
    yield "|---|---|---|---|"
    for row in option_rows(SparkOptions):
        cells = (f"`spark.{row.name}`", row.value, row.default, row.meaning)
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    yield ""


def _variables() -> Iterator[str]:
    used = {
        name
        for top in ("cli", "flumeng", "zkschema", "packages")
        for file in (TOP / top).rglob("*.py")
        for name in re.findall(r'"(FLUMENG_[A-Z_]+)"', file.read_text())
    }
    assert used == {*VARIABLES}, f"not as in the code: {used ^ {*VARIABLES}}"
    yield "## Environment variables\n"
    yield "| variable | meaning |"
    yield "|---|---|"
    for name, doc in VARIABLES.items():
        yield f"| `{name}{'NAME' if name.endswith('_') else ''}` | {doc} |"
