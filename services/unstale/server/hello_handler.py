"""Handles hellos: which connection speaks for a client, and the consequences for its former one and its task."""

from unstale import translate
from unstale.coordinator.actions import Finish
from unstale.coordinator.machine import Coordinator
from unstale.server.client_limits import check_participant, not_owner_error
from unstale.server.executor import ActionExecutor
from unstale.server.negotiation import EncodingNegotiation
from unstale.server.sender import Sender
from unstale.server.sessions import Sessions
from unstale.server.state import Access
from unstale.server.transfers import Transfers
from unstale_proto.messages import Hello, Stop


class HelloHandler:
    """Protocol thread only."""

    def __init__(
        self,
        access: Access,
        *,
        coordinator: Coordinator,
        sessions: Sessions,
        negotiation: EncodingNegotiation,
        sender: Sender,
        transfers: Transfers,
        executor: ActionExecutor,
    ) -> None:
        self._coordinator = coordinator
        self._client_limits, self._may_speak, self._owner_of = (access.client_limits, access.may_speak, access.owner_of)
        self._sessions = sessions
        self._negotiation = negotiation
        self._sender = sender
        self._transfers = transfers
        self._executor = executor

    def on_hello(self, route: bytes, speaker: int | None, hello: Hello, key: str | None, at_s: float) -> None:
        """Handle a hello.

        Args:
            route: Its connection.
            speaker: Client that the connection spoke for before.
            hello: The message.
            key: Of the connection, None in plain text.
            at_s: Time of arrival.

        Raises:
            RemoteContractError: The hello is refused.
        """
        client_id = hello.client_id
        check_participant(client_id, self._coordinator.settings)
        if not self._may_speak(key, client_id):
            raise not_owner_error(client_id)
        if self._executor.finish is not None:
            self._answer_after_end(route, hello, self._executor.finish)
            return
        self._client_limits.on_hello(route, speaker, client_id, at_s)
        if self._sessions.is_superseded(hello, active=self._coordinator.is_active(client_id)):
            self._sender.send(route, Stop(reason="superseded", version=self._coordinator.version))
            return
        if not self._sender.send(route, self._negotiation.welcome(hello, self._coordinator.version)):
            return  # the process has ended since
        same_connection = self._sessions.is_said_again(client_id, hello.session, route)
        superseded = self._sessions.admit(hello, route)
        self._negotiation.admit(hello)
        if not same_connection:
            self._transfers.moved_on(client_id, at_s)
        self._transfers.belongs_to(client_id, self._owner_of(key, client_id))
        if superseded is not None:
            self._sender.send(superseded, Stop(reason="superseded", version=self._coordinator.version))
        self._sender.on_message_from(client_id)
        self._executor.on_hello(hello, at_s, same_connection=same_connection)

    def _answer_after_end(self, route: bytes, hello: Hello, finish: Finish) -> None:
        """Stop a client that may not know of the end. Its goodbye comes over this connection, unless another process
        has taken the client over.
        """
        active = self._coordinator.is_active(hello.client_id)
        if not self._sessions.is_superseded(hello, active=active):
            self._sessions.admit(hello, route)
        self._sender.send(route, translate.to_stop(finish))
