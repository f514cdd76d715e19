"""The server's receive path, for a few messages: many short runs."""

from fuzz.choices import Choices
from fuzz.play import Note, Play


def run(data: bytes, note: Note) -> None:
    Play(Choices(data), note).play()
