"""Fixtures for all tests."""

from tests.harness import engine, growfs
from tests.inventories import inventories
from tests.servers import http_folder, moto_s3, rclone_s3

__all__ = ["engine", "growfs", "http_folder", "inventories", "moto_s3", "rclone_s3"]
