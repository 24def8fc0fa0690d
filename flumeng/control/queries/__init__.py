"""What operators see: status, lists, details, lag, history."""
