"""Print the rows of the table."""

from deltalake import DeltaTable

options = {
    "endpoint_url": "http://minio:9000",
    "allow_http": "true",
    "region": "us-east-1",
    "access_key_id": "example",
    "secret_access_key": "example-key",
}
table = DeltaTable("s3://lake/s3-access", storage_options=options)
for row in table.to_pyarrow_table().to_pylist():
    print(row)
