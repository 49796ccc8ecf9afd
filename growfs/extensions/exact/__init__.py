"""--exact: each pass over the data lists each file exactly once. The rules are in growfs.rotation.parts."""
