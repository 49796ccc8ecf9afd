"""Listings that somebody else made: tables of paths, and S3 Inventory.

For others: `manifest` (a remote that is listed by one), `tables` and `inventory` (what reads them).
"""
