"""`growfs csi`: the CSI driver for Kubernetes, which mounts for the pods of its node. It needs the extra `kubernetes`.

Implements the services Identity and Node of the Container Storage Interface. `volumes` reads what a pod asks for,
`node` mounts it, `cgroups` lets daemons outlive the driver's container, and `server` answers kubelet. `generated` is
made from csi.proto by tools/csi-proto.
"""
