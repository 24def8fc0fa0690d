"""Filter process of a gateway: runs a flow's filters for other sites, without any credentials."""
