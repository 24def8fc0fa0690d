"""What an operator can change: each change is one compare-and-set transaction on the store.

The command line, the web page and tests call the same functions. Each change leaves an entry in
``/audit`` within its own transaction: ``author`` is who, ``reason`` why, ``now`` when, in seconds
since the epoch, which is shown and never decided by. Nothing here decides what runs where: masters
do, from what is written here.
"""

from flumeng.operations.acks import Advanced, advance_acks, behind
from flumeng.operations.audit import KEEP_AUDIT
from flumeng.operations.chokes import chokes, set_choke
from flumeng.operations.cluster import (
    export_cluster,
    import_cluster,
    init_cluster,
    migrate_cluster,
    pending_migrations,
    repair_cluster,
    repairs,
    verify_cluster,
)
from flumeng.operations.discarding import DataLoss, data_loss, discard_node
from flumeng.operations.flows import (
    KEEP_REVISIONS,
    Applied,
    apply_flow,
    delete_flow,
    expect_current,
    next_revision,
    require_flow,
    require_revision,
    rollback_flow,
    set_flow_state,
)
from flumeng.operations.nodes import (
    Left,
    decommission_node,
    label_node,
    left,
    require_node,
    resize_node,
    set_node_desired,
)
from flumeng.operations.settings import (
    SETTINGS,
    SettingRow,
    begin_maintenance,
    end_maintenance,
    refuse_in_maintenance,
    set_setting,
    settings,
    shown,
)
from flumeng.operations.tasks import (
    TaskChange,
    look,
    move_task,
    moved,
    restart_task,
    restarted,
)

__all__ = [
    "KEEP_AUDIT",
    "KEEP_REVISIONS",
    "SETTINGS",
    "Advanced",
    "Applied",
    "DataLoss",
    "Left",
    "SettingRow",
    "TaskChange",
    "advance_acks",
    "apply_flow",
    "begin_maintenance",
    "behind",
    "chokes",
    "data_loss",
    "decommission_node",
    "delete_flow",
    "discard_node",
    "end_maintenance",
    "expect_current",
    "export_cluster",
    "import_cluster",
    "init_cluster",
    "label_node",
    "left",
    "look",
    "migrate_cluster",
    "move_task",
    "moved",
    "next_revision",
    "pending_migrations",
    "refuse_in_maintenance",
    "repair_cluster",
    "repairs",
    "require_flow",
    "require_node",
    "require_revision",
    "resize_node",
    "restart_task",
    "restarted",
    "rollback_flow",
    "set_choke",
    "set_flow_state",
    "set_node_desired",
    "set_setting",
    "settings",
    "shown",
    "verify_cluster",
]
