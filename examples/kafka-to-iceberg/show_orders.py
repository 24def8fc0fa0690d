"""Print the rows of the table."""

from pyiceberg.catalog import load_catalog

catalog = load_catalog(
    "default",
    **{
        "type": "sql",
        "uri": "postgresql+psycopg2://iceberg:example@catalog:5432/iceberg",
        "s3.endpoint": "http://minio:9000",
        "s3.region": "us-east-1",
        "s3.access-key-id": "example",
        "s3.secret-access-key": "example-key",
    },
)
for row in catalog.load_table("shop.orders").scan().to_arrow().to_pylist():
    print(row)
