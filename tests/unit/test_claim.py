from pathlib import Path

import pytest

from dcr.errors import ConfigError, StoreError
from dcr.refit.claim import claim_folder


def test_a_folder_has_one_owner_at_a_time(tmp_path: Path) -> None:
    held = claim_folder(tmp_path / "rank-0")
    with pytest.raises(ConfigError, match="give each rank a folder of its own"):
        claim_folder(tmp_path / "rank-0")
    claim_folder(tmp_path / "rank-1").release()
    held.release()
    held.release()
    claim_folder(tmp_path / "rank-0").release()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="file/rank-0"):
        claim_folder(tmp_path / "file" / "rank-0")
