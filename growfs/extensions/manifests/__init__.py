"""Listings from files instead of a store's own: tables of paths, and S3 Inventory.

Public modules: `options` and `layer`. Workers import `manifest` (a remote listed by such a file), `tables` and
`inventory` (which read the files).
"""
