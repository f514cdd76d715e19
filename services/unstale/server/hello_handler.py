"""Hellos: who may speak for a client from now on, and what follows for its former connection and its task."""

from collections.abc import Callable

from unstale import translate
from unstale.coordinator import events
from unstale.coordinator.machine import Coordinator
from unstale.server.client_limits import check_participant, not_owner_error
from unstale.server.delivery import DeliveryTracker
from unstale.server.executor import ActionExecutor
from unstale.server.negotiation import EncodingNegotiation
from unstale.server.sender import Sender
from unstale.server.sessions import Sessions
from unstale.server.state import Access
from unstale.server.transfers import Transfers
from unstale_proto.messages import Hello, Stop


class HelloHandler:
    """Protocol thread only. handle: has an event handled, and what follows from it."""

    def __init__(
        self,
        access: Access,
        *,
        coordinator: Coordinator,
        sessions: Sessions,
        negotiation: EncodingNegotiation,
        sender: Sender,
        delivery: DeliveryTracker,
        transfers: Transfers,
        executor: ActionExecutor,
        handle: Callable[[events.Event], None],
    ) -> None:
        self._coordinator = coordinator
        self._client_limits, self._may_speak, self._owner_of = (
            access.client_limits,
            access.may_speak,
            access.owner_of,
        )
        self._sessions = sessions
        self._negotiation = negotiation
        self._sender = sender
        self._delivery = delivery
        self._transfers = transfers
        self._executor = executor
        self._handle = handle

    def on_hello(self, route: bytes, speaker: int | None, hello: Hello, key: str | None, at_s: float) -> None:
        """A hello came. speaker: the client that the connection spoke for before. key: of the connection. Raises
        RemoteContractError for one that is refused."""
        client_id = hello.client_id
        check_participant(client_id, self._coordinator.settings)
        if not self._may_speak(key, client_id):
            raise not_owner_error(client_id)
        if self._executor.finish is not None:
            self._executor.answer_hello_after_end(route, hello, self._executor.finish)
            return
        self._client_limits.on_hello(route, speaker, client_id, at_s)
        if self._sessions.is_superseded(hello, active=self._coordinator.is_active(client_id)):
            self._sender.send(route, Stop(reason="superseded", version=self._coordinator.version))
            return
        if not self._sender.send(route, self._negotiation.welcome(hello, self._coordinator.version)):
            return  # the last word of a process that is gone; it takes nothing over
        same_connection = self._sessions.is_said_again(client_id, hello.session, route)
        superseded = self._sessions.admit(hello, route)
        self._negotiation.admit(hello)
        if not same_connection:
            self._on_reconnect(hello, at_s)
        self._transfers.belongs_to(client_id, self._owner_of(key, client_id))
        if superseded is not None:
            self._sender.send(superseded, Stop(reason="superseded", version=self._coordinator.version))
        self._sender.on_message_from(client_id)
        self._handle(translate.to_client_joined(hello, at_s, same_connection=same_connection))
        if not same_connection:
            self._delivery.on_hello(hello, self._coordinator.awaits)

    def _on_reconnect(self, hello: Hello, at_s: float) -> None:
        """A client is on another connection now."""
        expired = self._delivery.expired_by_hello(hello, self._coordinator.awaits, at_s)
        if expired is not None:
            self._handle(expired)
        self._delivery.forget(hello.client_id)
        self._transfers.moved_on(hello.client_id, at_s)
