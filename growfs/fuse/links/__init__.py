"""The engine that shows cached files as symbolic links: `engine` answers the kernel, `view` has the links."""
