"""Read-only queries for operators: status, lists, details, lag, history."""
