"""ZAP authentication of a listening socket: which connections are accepted, and for which clients each may speak.

For every handshake ZeroMQ sends a request (ZAP, RFC 27), which a thread answers from the folder of authorized keys;
without an answer CURVE would accept any key. Every message then carries the proven key as its User-Id: libzmq prefers
that of the answer to anything the peer sends. Why not `zmq.auth`: docs/decisions/0040-zmq-auth.md.
"""

import threading
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

import zmq
from zmq.utils import z85

from unstale.errors import UserError
from unstale.log_rate_limit import about_peer, logger
from unstale.net import authorized_keys
from unstale.net.authorized_keys import AuthorizedKeys
from unstale_client.net import keys, sockets
from unstale_client.net.clock import now_s
from unstale_client.net.handshakes import CRYPTOGRAPHIC
from unstale_client.net.wakeable_queue import WakeableQueue

Context = zmq.Context[zmq.Socket[bytes]]
Socket = zmq.Socket[bytes]

log = logger("unstale.keys")

REREAD_S = 1.0  # a key is revoked within a second, for open connections too
LOGGED_KEYS_MAX = 100  # keys that the log names; a flood of others is only counted
ZAP_ADDRESS, ZAP_VERSION, ZAP_DOMAIN = "inproc://zeromq.zap.01", b"1.0", b"unstale"

UNKNOWN_KEY, WRONG_SERVER_KEY, NO_KEY = "unknown-key", "wrong-server-key", "no-key"
REASONS = (UNKNOWN_KEY, WRONG_SERVER_KEY, NO_KEY)  # no key: any other failure, such as plain text


@dataclass(slots=True, eq=False)
class ZapAuthenticator:
    """Accepts every connection without a folder. The constructor reads the key files, and raises UserError."""

    folder: str | None  # of keys; None for plain text
    name: str  # of the own key in it
    setting: str  # configuration key of the folder
    _: KW_ONLY
    refused: Callable[[str], None]  # takes the reason of each failed handshake, in the thread of `on_handshake_failed`
    on_crash: Callable[[BaseException], None]  # takes the error that ended the authenticator's thread, in that thread
    identity: keys.Identity | None = None
    _authorized: AuthorizedKeys | None = None
    _logged: set[str] = field(default_factory=set)
    _is_open: bool = False
    _reads: threading.Lock = field(init=False, default_factory=threading.Lock)
    _requests: Socket = field(init=False)
    _queue: WakeableQueue[None] = field(init=False)
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        if self.folder is None:
            return
        file = Path(self.folder) / f"{self.name}{keys.SECRET_SUFFIX}"
        self.identity = keys.identity(file, self.setting)
        if self.name == authorized_keys.INJECTOR and self.identity.server is None:
            raise UserError(
                f"{self.setting} {str(file)!r} does not name its server; create it by unstale keys new {self.name}"
            )
        self._authorized = AuthorizedKeys(Path(self.folder) / authorized_keys.ADMITTED)

    def start(self, context: Context, socket: Socket) -> None:
        """Protect a socket that is not yet bound."""
        if self.identity is None or self._authorized is None:
            return
        socket.curve_server = True
        socket.curve_secretkey = self.identity.secret.encode()
        sockets.let_encrypted_frames_in(socket)
        socket.zap_domain = ZAP_DOMAIN
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # no connection without an answer
        self._requests = context.socket(zmq.REP)
        self._requests.linger = 0
        self._requests.bind(ZAP_ADDRESS)
        self._is_open = True
        self._queue = WakeableQueue()
        self._thread = threading.Thread(target=self._run, args=(self._authorized,), name="zap", daemon=True)
        self._thread.start()

    def key_of(self, frame: zmq.Frame) -> str | None:
        """The public key behind a frame that was received uncopied; None in plain text."""
        if self._authorized is None:
            return None
        key = frame.get("User-Id")
        assert isinstance(key, str)
        return key

    def may_speak(self, key: str | None, client_id: int) -> bool:
        """Whether a key owns a client now; always in plain text. Any thread."""
        return self._authorized is None or self._authorized.may_speak(key, client_id)

    def refresh(self, *, only_new: bool = False) -> None:
        """Read the keys again if they have changed, for a process without the socket. Any thread."""
        if self._authorized is not None:
            with self._reads:
                self._authorized.refresh(only_new=only_new)

    def on_handshake_failed(self, kind: int, value: int) -> None:
        """A handshake failed. kind, value: of the monitor's event."""
        if self._authorized is None:
            return
        if kind == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            self.refused(UNKNOWN_KEY)
        else:
            self.refused(WRONG_SERVER_KEY if value == CRYPTOGRAPHIC else NO_KEY)

    def owner_of(self, key: str | None, client_id: int) -> str | int:
        """The key with whose other clients a client shares its limits, or the client itself: in plain text, and behind
        the injector, which forwards the messages of clients with keys of their own. Any thread.
        """
        owner = None if self._authorized is None or key is None else self._authorized.owners.get(key)
        return client_id if owner is None or key is None or owner.name == authorized_keys.INJECTOR else key

    def close(self) -> None:
        """Accept no more connections. Call it in the socket's thread before the socket is closed; twice is allowed."""
        is_open, self._is_open = self._is_open, False
        if is_open:
            self._queue.post(None)
            self._thread.join()
            self._queue.close()
            self._requests.close()

    # --- the authenticator's thread ---

    def _run(self, authorized: AuthorizedKeys) -> None:
        poller = zmq.Poller()
        for source in (self._requests, self._queue.fileno()):
            poller.register(source, zmq.POLLIN)
        try:
            due_s = now_s()
            while self._queue.fileno() not in (ready := dict(poller.poll(int(REREAD_S * 1000)))):
                if now_s() >= due_s:
                    authorized.refresh()
                    due_s = now_s() + REREAD_S
                if self._requests in ready:
                    authorized.refresh(only_new=True)
                    self._requests.send_multipart(self._answer(self._requests.recv_multipart(), authorized))
        except BaseException as error:  # noqa: BLE001  (raised in the main thread)
            self.on_crash(error)

    def _answer(self, request: list[bytes], authorized: AuthorizedKeys) -> list[bytes]:
        """Request: version, request id, domain, address, routing id, mechanism, credentials.

        Answer: version, request id, status code, status text, User-Id, metadata.
        """
        request_id, address, mechanism, credentials = request[1], request[3], request[5], request[6:]
        key = z85.encode(credentials[0]).decode() if mechanism == b"CURVE" else ""
        if key in authorized.owners:
            return [ZAP_VERSION, request_id, b"200", b"OK", key.encode(), b""]
        if key not in self._logged and len(self._logged) < LOGGED_KEYS_MAX:
            self._logged.add(key)
            log.warning(
                "refused a connection from %s with the unknown key %s", address.decode(), key, extra=about_peer(address)
            )
        return [ZAP_VERSION, request_id, b"400", b"unknown key", b"", b""]
