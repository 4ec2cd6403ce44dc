"""The client for Ray's tasks, without Ray."""

import importlib.util
import socket
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

CLIENT = Path(__file__).parents[2] / "contrib/ray/isolator_ray/client.py"


@pytest.fixture(scope="module")
def client():
    spec = importlib.util.spec_from_file_location("isolator_ray_client", CLIENT)
    # Its data classes look for it there.
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def dripping():
    """The address of a server whose answers never end."""

    def answer():
        connection, _ = server.accept()
        with connection:
            try:
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
                for _ in range(200):
                    connection.sendall(b" ")
                    time.sleep(0.05)
            except OSError:
                return

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=answer, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_an_answer_that_comes_byte_by_byte_ends_in_time(client):
    with dripping() as address:
        began = time.monotonic()
        with pytest.raises(client.Unserved):
            client.run_on([address], "pass", within=0.5)
        assert time.monotonic() - began < 5


def test_only_addresses_of_a_machine_are_its_own(client):
    assert client.host_of("http://10.0.0.1:8000") == "10.0.0.1"
    for no_address in (None, 7, "", "http://[", "evil"):
        assert client.host_of(no_address) is None
    assert all(map(client.is_loopback, ("127.0.0.1", "::1", "localhost")))
    assert not any(map(client.is_loopback, ("10.0.0.1", "127.0.0.1.evil", "evil")))
