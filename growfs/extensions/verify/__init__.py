"""`growfs verify`: the cached files are compared with their digests."""
