"""The stores: local folders, any fsspec filesystem, web servers, S3. Each is a `protocol.Remote`."""
