"""The server's receive path in long runs: crowds of messages, and the run can always be finished."""

from typing_extensions import override

from fuzz import headers
from fuzz.choices import Choices
from fuzz.extents import extents
from fuzz.material import ONES, update_fields
from fuzz.play import Note, Play
from unstale.server.client_limits import ROUTES_KEPT
from unstale_proto.messages import Task
from unstale_proto.transfer import checksum

CROWD = 80  # messages of one kind with small differences, which reveal an unbounded table
EXTENT_MAX = 48  # bound on the entries of any container of the server protocol: above constants, far below a crowd
TURNS_MAX = 200  # bound for a run of three rounds with honest clients, after a quarantine
TURN_S = 2.0
RETRY_S = 5.0  # of the simulated server


def run(data: bytes, note: Note) -> None:
    LongPlay(Choices(data), note).play()


class LongPlay(Play):
    """A simulation with crowds of messages, and a finish."""

    def __init__(self, choices: Choices, note: Note) -> None:
        super().__init__(choices, note)
        self.steps = (*self.steps, self.crowd)
        self.has_model_of: set[int] = set()

    @override
    def play_steps(self) -> None:
        super().play_steps()
        self.finish()

    @override
    def check_at_the_end(self) -> None:
        super().check_at_the_end()
        for path, extent in extents(self.protocol, but=self.client_limits):
            assert extent <= EXTENT_MAX, f"{path} has {extent} entries, with {self.clients} clients"
        *others, longest = sorted(extent for _, extent in extents(self.client_limits))
        assert longest <= ROUTES_KEPT  # connections in its tables
        assert max(others) <= EXTENT_MAX, f"the guard holds {others}, with {self.clients} clients"

    def crowd(self) -> None:
        """Many messages of one type: on many connections or one, of many processes, about many tasks."""
        kind, own_route, first = self.choices.number(5), self.choices.number(2), self.choices.number(64)
        for number in range(first, first + CROWD):
            if self.is_over:
                return
            route = b"crowd %d" % number if own_route else b"0"
            client_id = number % self.clients
            match kind:
                case 0:
                    self.say(route, "hello", client_id=client_id, session=f"{number:032x}", holding=[number + 1])
                case 1:
                    self.say(route, "heartbeat", number=number, version=0, newest_task=number, heard=number)
                case 2:
                    self.take_in(route, headers.packed({**update_fields(None), "task_id": number + 1}), ONES)
                case 3:
                    self.say(route, "error", reason="unavailable", task_id=number + 1)
                case _:
                    self.return_task(b"%d" % client_id)

    def return_task(self, route: bytes) -> None:
        """Return the task of a connection with a training failure."""
        task = self.task_of.pop(route, None)
        if task is not None:
            self.say(route, "error", reason="non-finite", task_id=task.task_id)
        self.settle(RETRY_S)

    def finish(self) -> None:
        """Every client is honest, and the network works: the run finishes."""
        self.server.wire.gone.clear()
        self.server.wire.full.clear()
        self.fill_disk(False)
        self.shut_out.update(b"good %d" % client_id for client_id in range(self.clients))
        for _ in range(TURNS_MAX):
            for client_id in range(self.clients):
                if self.is_over:
                    self.note("finished")
                    return
                self.take_turn(b"good %d" % client_id, client_id)
            self.compute()
            self.settle(TURN_S)
        raise AssertionError(f"the run does not end, at version {self.coordinator.version}")

    def take_turn(self, route: bytes, client_id: int) -> None:
        """Send the next message: a required hello, a message for the task, or a heartbeat."""
        task = self.task_of.get(route)
        if route in self.shut_out:
            self.shut_out.discard(route)
            self.say(route, "hello", client_id=client_id, session=f"f{client_id:031x}")
        elif task is None or task.task_id in self.answered:
            self.beats += 1
            self.say(route, "heartbeat", number=self.beats, version=0)
        elif task.checksum is not None and task.task_id not in self.has_model_of:
            self.request_model(route, task)
        elif self.in_chunks:
            self.continue_update(route, task)
        else:
            self.take_in(route, headers.packed(update_fields(task)), ONES)

    def request_model(self, route: bytes, task: Task) -> None:
        """Request the model until it is complete, and acknowledge it."""
        have = self.transfers.model_bytes_of.get(task.task_id, 0)
        if have == len(ONES):
            self.has_model_of.add(task.task_id)
        self.transfers.ask(route, task.task_id, have, len(ONES), again=have < len(ONES))

    def continue_update(self, route: bytes, task: Task) -> None:
        """Send chunks within the credit; without credit announce the update, possibly again."""
        credit = self.transfers.credit_of.pop(route, None)
        if credit is None or credit.task_id != task.task_id or credit.have == credit.until:
            fields = {**update_fields(task), "checksum": checksum([memoryview(ONES)])}
            self.take_in(route, headers.packed(fields))
        else:
            piece = ONES[credit.have : credit.until]
            self.say(route, "chunk", [piece], task_id=task.task_id, offset=credit.have)
