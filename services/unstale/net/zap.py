"""ZAP authentication of a listening socket: whose connections are accepted, and for which clients each may speak.

ZeroMQ asks for every handshake (ZAP, RFC 27): a thread of its own answers from the folder of admitted keys. Without
that thread CURVE would admit anyone who knows our public key. What the handshake proved comes with every message, as
its User-Id; that is ours, whatever else the other side says of itself, because libzmq takes what ZAP says before what
the peer says.
"""

import threading
from collections.abc import Callable
from pathlib import Path

import zmq
from zmq.utils import z85

from unstale.errors import UserError
from unstale.log_rate_limit import about_peer, logger
from unstale.net import keys, sockets
from unstale.net.authorized_keys import AuthorizedKeys
from unstale.net.clock import now_s
from unstale.net.handshakes import CRYPTOGRAPHIC
from unstale.net.wakeable_queue import WakeableQueue

Context = zmq.Context[zmq.Socket[bytes]]
Socket = zmq.Socket[bytes]

log = logger("unstale.keys")

REREAD_S = 1.0  # a key is revoked within a second, also for those that are connected
LOGGED_KEYS_MAX = 100  # keys that the log names; a flood of further ones is only counted
ZAP_ADDRESS, ZAP_VERSION, ZAP_DOMAIN = "inproc://zeromq.zap.01", b"1.0", b"unstale"

UNKNOWN_KEY, WRONG_SERVER_KEY, NO_KEY = "unknown-key", "wrong-server-key", "no-key"
REASONS = (UNKNOWN_KEY, WRONG_SERVER_KEY, NO_KEY)


class ZapAuthenticator:
    """Open to everybody until it has a folder. Made: files are read; UserError for what is wrong with them.

    folder: of keys, None for plain text. name: whose key there is ours. setting: key of the configuration that names
    the folder. on_crash: told what the thread died of, in the gate's thread. refused: told of each handshake that
    failed, in the thread that calls `on_handshake_failed`: `unknown-key`, `wrong-server-key`, or `no-key` for any
    other, such as plain text.
    """

    def __init__(
        self,
        folder: str | None,
        name: str,
        setting: str,
        *,
        refused: Callable[[str], None],
        on_crash: Callable[[BaseException], None],
    ) -> None:
        self.identity: keys.Identity | None = None
        self._authorized: AuthorizedKeys | None = None
        if folder is not None:
            file = Path(folder) / f"{name}{keys.SECRET_SUFFIX}"
            self.identity = keys.identity(file, setting)
            if name == keys.INJECTOR and self.identity.server is None:
                raise UserError(
                    f"{setting} {str(file)!r} does not say for which server it is; make it by unstale keys new {name}"
                )
            self._authorized = AuthorizedKeys(Path(folder) / keys.ADMITTED)
        self._told: set[str] = set()
        self._refused = refused
        self._on_crash = on_crash
        self._is_open = False
        self._asked: Socket  # by ZeroMQ, for each handshake
        self._queue: WakeableQueue[None]
        self._thread: threading.Thread

    def start(self, context: Context, socket: Socket) -> None:
        """Stand before a socket that is not yet bound."""
        if self.identity is None or self._authorized is None:
            return
        socket.curve_server = True
        socket.curve_secretkey = self.identity.secret.encode()
        sockets.let_encrypted_frames_in(socket)
        socket.zap_domain = ZAP_DOMAIN
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # nobody comes in while nobody answers
        self._asked = context.socket(zmq.REP)
        self._asked.linger = 0
        self._asked.bind(ZAP_ADDRESS)
        self._is_open = True
        self._queue = WakeableQueue()
        self._thread = threading.Thread(target=self._run, args=(self._authorized,), name="zap", daemon=True)
        self._thread.start()

    def key_of(self, frame: zmq.Frame) -> str | None:
        """The public key of whom a frame came from; None in plain text. frame: received uncopied."""
        if self._authorized is None:
            return None
        key = frame.get("User-Id")
        assert isinstance(key, str)
        return key

    def may_speak(self, key: str | None, client_id: int) -> bool:
        """Whether the owner of a key may say now that it is this client. In plain text anybody may. Any thread."""
        return self._authorized is None or self._authorized.may_speak(key, client_id)

    def on_handshake_failed(self, kind: int, value: int) -> None:
        """A handshake failed. kind, value: of the event of the socket's monitor."""
        if self._authorized is not None:
            self._refused(_reason(kind, value))

    def owner_of(self, key: str | None, client_id: int) -> str | int:
        """With whom a client shares what each owner may use: with all clients of its key. The injector passes on what
        clients say that have keys of their own, and so it is no owner, nor is anybody in plain text. Any thread."""
        owner = None if self._authorized is None or key is None else self._authorized.owners.get(key)
        return client_id if owner is None or key is None or owner.name == keys.INJECTOR else key

    def close(self) -> None:
        """Let nobody in any more. Called where the socket is used, before that is closed; twice is once."""
        is_open, self._is_open = self._is_open, False
        if is_open:
            self._queue.post(None)
            self._thread.join()
            self._queue.close()
            self._asked.close()

    # --- the thread ---

    def _run(self, authorized: AuthorizedKeys) -> None:
        poller = zmq.Poller()
        for source in (self._asked, self._queue.fileno()):
            poller.register(source, zmq.POLLIN)
        try:
            due_s = now_s()
            while self._queue.fileno() not in (ready := dict(poller.poll(int(REREAD_S * 1000)))):
                if now_s() >= due_s:
                    authorized.refresh()
                    due_s = now_s() + REREAD_S
                if self._asked in ready:
                    authorized.refresh(only_new=True)
                    self._asked.send_multipart(self._answer(self._asked.recv_multipart(), authorized))
        except BaseException as error:  # noqa: BLE001  (raised in the main thread)
            self._on_crash(error)

    def _answer(self, request: list[bytes], authorized: AuthorizedKeys) -> list[bytes]:
        """To a question of ZAP: version, request id, domain, address, routing id, mechanism, credentials.

        The answer: version, request id, status code, status text, User-Id, metadata.
        """
        request_id, address, mechanism, credentials = request[1], request[3], request[5], request[6:]
        key = z85.encode(credentials[0]).decode() if mechanism == b"CURVE" else ""
        if key in authorized.owners:
            return [ZAP_VERSION, request_id, b"200", b"OK", key.encode(), b""]
        if key not in self._told and len(self._told) < LOGGED_KEYS_MAX:
            self._told.add(key)
            log.warning(
                "a connection from %s with the key %s is not let in",
                address.decode(),
                key,
                extra=about_peer(address),
            )
        return [ZAP_VERSION, request_id, b"400", b"unknown key", b"", b""]


def _reason(kind: int, value: int) -> str:
    if kind == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        return UNKNOWN_KEY
    return WRONG_SERVER_KEY if value == CRYPTOGRAPHIC else NO_KEY
