"""The level `encodings`: each encoding that the client names, beside the same training in float32."""

import numpy as np

from unstale.client_conformance import run
from unstale.client_conformance.check import check
from unstale.client_conformance.peer import Peer, Received
from unstale.client_conformance.rules import BrokenRuleError, NotApplicableError, require
from unstale_proto import encodings
from unstale_proto.errors import Reason, RemoteContractError
from unstale_proto.messages import Ack, EncodingPlan, Hello, Update, Welcome

BLOCK = 8
KEEP = 6
Numbers = np.ndarray


def _plan(updates: str, models: str) -> EncodingPlan:
    return EncodingPlan.model_validate(
        {
            "updates": updates,
            "models": models,
            "block": BLOCK if "int8" in (updates, models) else None,
            "keep": KEEP if updates == "top-k" else None,
        }
    )


def _begin(peer: Peer, name: str, *, updates: bool) -> None:
    """Read the client's hello, and welcome it with the encoding if it names that one."""
    peer.start()
    hello = peer.next(Hello).message
    assert isinstance(hello, Hello)
    if name not in (hello.encodings or ()):
        raise NotApplicableError(f"the client does not name {name} in `encodings` of hello")
    plan = _plan(name if updates else "float32", "float32" if updates else name)
    peer.welcome = run.welcome(encoding=plan)
    peer.send(peer.welcome)


def _decoded(update: Received, of: Welcome) -> Numbers:
    """The numbers of an update in the encoding of its header, which is float32 or that of welcome."""
    message = update.message
    assert isinstance(message, Update)
    agreed = "float32" if of.encoding is None else of.encoding.updates
    name = message.encoding or "float32"
    require(name in ("float32", agreed), f"encoding float32 or {agreed}", name)
    d = sum(int(np.prod(shape)) for shape in run.SHAPES.values())
    encoding = encodings.of_updates(of.encoding if name == agreed else None, d)
    require(message.payload_bytes == encoding.payload_bytes, f"{encoding.payload_bytes} bytes", message.payload_bytes)
    try:
        parts = [bytes(part) for part in encoding.decode([memoryview(frame) for frame in update.frames])]
    except RemoteContractError as error:
        raise BrokenRuleError(
            f"expected a payload by 9.1, got one that is refused as {error.reason}: {error}"
        ) from error
    numbers = np.frombuffer(b"".join(parts), "<f4")
    require(bool(np.isfinite(numbers).all()), "finite numbers", "NaN or infinity")
    return numbers


def _update_check(name: str) -> None:
    @check(
        "encodings", f"update-{name}", "9.1", f"An update in {name} is the float32 update within the bound of {name}"
    )
    def _(peer: Peer) -> None:
        _begin(peer, name, updates=True)
        encoded = _decoded(peer.round(7), peer.welcome)
        exact = _exact(peer)
        wrong = np.abs(exact - encoded) > _bounds(name, exact, encoded)
        if wrong.any():
            index = int(np.argmax(wrong))
            raise BrokenRuleError(
                f"expected number {index} of the update within the bound of {exact[index]:.9g}, which the same "
                f"training sends in float32, got {encoded[index]:.9g}"
            )


def _exact(peer: Peer, model: bytes | None = None) -> Numbers:
    """The update of a new process in a new folder, in float32. model: In float32, by default that of the run."""
    peer.kill()
    peer.reopen()
    peer.welcome = run.welcome()
    peer.folder = peer.folder.with_name("second")
    peer.folder.mkdir()
    peer.join()
    task = run.task(7, peer.welcome)
    peer.give(task, None if model is None else [model])
    return _decoded(peer.update_of(task), peer.welcome)


def _bounds(name: str, exact: Numbers, encoded: Numbers) -> Numbers:
    """The largest error of each number by 9.1, slightly widened for float32 arithmetic."""
    sizes = np.abs(exact.astype(np.float64))
    if name == "bfloat16":
        return np.maximum(sizes * 2.0**-8, 2.0**-134)
    if name == "float16":
        return np.maximum(sizes * 2.0**-11, 2.0**-25)
    if name == "int8":
        largest = [sizes[at : at + BLOCK].max() for at in range(0, len(sizes), BLOCK)]
        return np.repeat(largest, BLOCK)[: len(sizes)] / 253 + 2.0**-140
    sent = encoded != 0  # top-k: exact where it is sent; the others come later
    require(int(sent.sum()) == KEEP, f"{KEEP} sent numbers", int(sent.sum()))
    return np.where(sent, 0.0, np.inf)


def _model_check(name: str) -> None:
    @check("encodings", f"model-{name}", "9.1", f"A model in {name} is decoded and trained")
    def _(peer: Peer) -> None:
        _begin(peer, name, updates=False)
        numbers = run.model(21)
        encoding = encodings.of_models(peer.welcome.encoding, len(numbers))
        frames = [bytes(frame) for frame in encoding.frames([memoryview(numbers.tobytes())])]
        decoded = b"".join(bytes(part) for part in encoding.decode([memoryview(frame) for frame in frames]))
        task = run.task(7, peer.welcome, payload_bytes=encoding.payload_bytes, encoding=name)
        peer.give(task, frames)
        first = _decoded(peer.update_of(task), peer.welcome)
        exact = _exact(peer, decoded)
        require(bool((first == exact).all()), "the update of the decoded model in float32", "another one")


@check("encodings", "float32-always", "9.1", "A task in float32 is accepted in a run with another encoding")
def _(peer: Peer) -> None:
    peer.start()
    hello = peer.next(Hello).message
    assert isinstance(hello, Hello)
    named = [name for name in hello.encodings or () if name in ("bfloat16", "float16", "int8")]
    require(len(named) > 0, "an encoding besides float32 in `encodings` of hello", list(hello.encodings or ()))
    peer.welcome = run.welcome(encoding=_plan(named[0], named[0]))
    peer.send(peer.welcome)
    _decoded(peer.round(7), peer.welcome)


for _name in ("bfloat16", "float16", "int8", "top-k"):
    _update_check(_name)


@check(
    "encodings",
    "residual-top-k",
    "9.1",
    "An update in top-k adds the unsent numbers of an accepted update, and not those of a rejected one",
)
def _(peer: Peer) -> None:
    _begin(peer, "top-k", updates=True)
    first = _decoded(peer.round(7), peer.welcome)
    _task, update = peer.trained(8)
    second = _decoded(update, peer.welcome)
    peer.send(Ack(task_id=8, outcome="rejected", first_outcome="rejected", reason=Reason.NORM_TOO_LARGE))
    third = _decoded(peer.round(9), peer.welcome)
    exact = _exact(peer)
    due = 2 * exact - first  # the update, and what the first one did not send
    for numbers, after in ((second, "an accepted update"), (third, "a rejected update")):
        wrong = (numbers != 0) & ~np.isclose(numbers, due, rtol=1e-5)
        if wrong.any():
            index = int(np.argmax(wrong))
            raise BrokenRuleError(
                f"expected number {index} of the update after {after} to be {due[index]:.9g}, got {numbers[index]:.9g}"
            )


for _name in ("bfloat16", "float16", "int8"):
    _model_check(_name)
