"""--peers: nodes that fetch files from each other. The rules are in growfs.rotation.circle."""
