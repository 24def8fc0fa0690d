"""PostgreSQL through ADBC: a connection, a table, and columns as its binary COPY takes them."""
