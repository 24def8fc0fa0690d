"""Gateway process: serves this site's flows to other sites. It keeps no state."""
