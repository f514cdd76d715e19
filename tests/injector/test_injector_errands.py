"""What is asked of the proxy's thread: answers, mistakes, and what nobody waits for any more."""

import threading

import pytest

from unstale.injector import errands
from unstale.injector.errands import Errand, Letter, ask
from unstale.net.mailbox import Mailbox


@pytest.fixture
def mailbox() -> Mailbox[Letter]:
    return Mailbox()


def test_what_goes_wrong_is_raised_where_it_was_asked(mailbox: Mailbox[Letter]) -> None:
    def work() -> float:
        return 10.0**400

    def serve() -> None:
        while not (letters := mailbox.drain()):
            pass
        for letter in letters:
            assert isinstance(letter, Errand)
            letter.carry_out()

    served = threading.Thread(target=serve)
    served.start()
    with pytest.raises(OverflowError):
        ask(mailbox, work)
    served.join()
    mailbox.close()


def test_what_nobody_waits_for_any_more_is_not_done(
    mailbox: Mailbox[Letter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errands, "ANSWER_S", 0.01)
    done: list[bool] = []
    with pytest.raises(TimeoutError, match="the injector does not answer"):
        ask(mailbox, lambda: done.append(True))
    (errand,) = mailbox.drain()
    assert isinstance(errand, Errand)
    errand.carry_out()
    assert done == []
    mailbox.close()
