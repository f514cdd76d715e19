"""Models and updates in chunks over encrypted links: as in plain text, also where the link breaks."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from support.cuts import Link
from support.keyed import KeyedClient
from support.large import MODEL_BYTES, RunningClient, wide
from support.running import IN_PROCESS, PATIENCE_S, RunningServer, small
from unstale_client.net.keys import Identity
from unstale_proto.errors import Reason
from unstale_proto.limits import FRAME_BYTES_MAX

pytestmark = pytest.mark.network

IdentityOf = Callable[[str], Identity]


def test_a_frame_of_full_size_comes_through_with_all_that_encryption_adds(
    folder: Path, identity_of: IdentityOf
) -> None:
    settings = small(clients=1, server={"keys": str(folder), **IN_PROCESS})
    with RunningServer(settings) as server, KeyedClient(server.address, 0, identity_of("phone")) as client:
        server.allow_messages_of(FRAME_BYTES_MAX)
        client.join()
        task, _ = client.task()
        assert client.answer(task, np.ones(FRAME_BYTES_MAX // 4)).reason is Reason.WRONG_SIZE  # it was heard


@pytest.mark.slow
def test_over_an_encrypted_link_that_is_cut_six_times_little_is_sent_twice(
    folder: Path, identity_of: IdentityOf, tmp_path: Path
) -> None:
    # A round closes without whom it does not hear of: on a busy machine that may take a while.
    settings = wide(clients=2, trigger={"name": "sync"}, server={"keys": str(folder), "lease_s": 60.0})
    with (
        RunningServer(settings) as server,
        Link(server.address, every_bytes=MODEL_BYTES // 4, cuts=6) as link,
        RunningClient(settings, link.address, tmp_path / "kept", identity_of("phone")),
    ):
        outcome = server.end(patience_s=4 * PATIENCE_S)
        assert outcome.updates == {"accepted": 2, "duplicate": 0, "rejected": 0}
    assert link.cuts_left == 0
    assert link.passed < 1.6 * 3 * MODEL_BYTES  # one model down for both, two updates up
    assert not list((tmp_path / "kept").glob("*.model"))
