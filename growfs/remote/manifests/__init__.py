"""Listings from files in place of a store's own: tables of paths, and S3 Inventory.

For others: `manifest` (a remote that such a file lists), `tables` and `inventory` (which read the files).
"""
