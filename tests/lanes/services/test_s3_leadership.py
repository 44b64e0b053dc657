"""Who coordinates, decided by conditional writes on a real S3 server."""

import time
from functools import partial

import pytest

from dcr.commit.leadership.s3 import S3Leadership
from dcr.testing.leadership_suite import LeadershipContract, Race, SharedLeadershipContract
from dcr.transport.s3_client import S3Address

_LEASE_S = 2.0


class TestS3(LeadershipContract, SharedLeadershipContract):
    @pytest.fixture
    def race(self, address: S3Address) -> Race:
        return Race(partial(S3Leadership, address, lease_s=_LEASE_S), _LEASE_S, time.sleep)
