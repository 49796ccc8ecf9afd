"""The messages of csi.proto, and the descriptors of its services. tools/csi-proto makes this package."""
