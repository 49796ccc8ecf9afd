"""The metrics of a mount: a virtual file, and a server (`--metrics-addr`)."""
