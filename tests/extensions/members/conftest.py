"""The fixtures of tests of remotes."""

from tests.remote.conftest import botocore_models_are_cached, no_shared_credentials

__all__ = ["botocore_models_are_cached", "no_shared_credentials"]
