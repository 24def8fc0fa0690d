"""Checks a flow that is read after another site's filters, before it is applied."""

from __future__ import annotations

from flumeng.config import check_behind, parse_written
from flumeng.config.column_kinds import EVENT, PASSED
from flumeng.connectors.sites.gateways import Gateways
from flumeng.connectors.sites.input import FILTERS_SECONDS, remote_of
from flumeng.control.zookeeper import Store
from flumeng.journal.serving.filtered_wire import OWN
from flumeng.platform.errors import FlumengError, NotAllowedError, UnavailableError, UserError


def check(store: Store, text: str) -> str:
    """Check the flow's expressions with the columns that the other site reports. Return why that
    was impossible, "" if nothing was. Raises UserError for filters that cannot run at the other
    site, SpecError for expressions that do not fit their columns."""
    spec = parse_written(text)
    remote = remote_of(spec)
    if remote is None or not remote.filters:
        return ""
    gateways = Gateways(remote.site, store, answer_seconds=FILTERS_SECONDS)
    try:
        gateways.proof()
    except UserError as error:
        return _unknown(spec.flow, error)
    try:
        answer = gateways.filters(remote.flow)
    except (UnavailableError, NotAllowedError) as error:
        return _unknown(spec.flow, error)
    finally:
        gateways.close()
    own = {name: EVENT[name] for name in OWN}
    check_behind(text, {**answer.columns, **own, **PASSED})
    return ""


def _unknown(flow: str, why: FlumengError) -> str:
    return f"flow {flow}: its expressions are checked when it runs, see `flumeng status`: {why}"
