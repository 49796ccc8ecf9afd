"""The messages and services of csi.proto. tools/csi-proto makes this package."""
