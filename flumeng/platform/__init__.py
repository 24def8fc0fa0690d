"""What every process needs: errors, logs, files, secrets, security, metrics."""
