"""PostgreSQL through ADBC: connection, table, and columns for its binary COPY."""
