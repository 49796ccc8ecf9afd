"""The stores: local folders, any fsspec filesystem, web servers, S3. Each class here is a `protocol.Remote`."""
