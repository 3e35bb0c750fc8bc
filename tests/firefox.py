"""Firefox, spoken to by its own Marionette protocol: JSON over a socket, as [0, number, command,
parameters].
"""

import contextlib
import json
import shutil
import socket
import subprocess
import tempfile
import time

FIREFOX = next(filter(None, map(shutil.which, ("firefox-esr", "firefox"))), None)
PORT = 2828


class Firefox:
    def __init__(self, connection):
        self.connection, self.number = connection.makefile("rwb"), 0
        self._receive()  # its greeting

    def _receive(self):
        length = b""
        while not length.endswith(b":"):
            length += self.connection.read(1)
        return json.loads(self.connection.read(int(length[:-1])))

    def send(self, command, **parameters):
        self.number += 1
        message = json.dumps([0, self.number, command, parameters]).encode()
        self.connection.write(b"%d:%s" % (len(message), message))
        self.connection.flush()
        _, number, error, result = self._receive()
        assert number == self.number and not error, error
        return result

    def script(self, text):
        """What the body of a function returns on the page."""
        return self.send("WebDriver:ExecuteScript", script=text, args=[])["value"]

    def wait_for(self, text, seconds=240):
        """The first true value that the body of a function returns."""
        end = time.monotonic() + seconds
        while not (value := self.script(text)):
            assert time.monotonic() < end, f"{seconds} s: {text}"
            time.sleep(0.2)
        return value


@contextlib.contextmanager
def firefox():
    with tempfile.TemporaryDirectory() as profile:
        process = subprocess.Popen(
            [FIREFOX, "--headless", "--no-remote", "--profile", profile, "--marionette"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            end = time.monotonic() + 60
            while True:
                try:
                    connection = socket.create_connection(("127.0.0.1", PORT), timeout=300)
                    break
                except ConnectionRefusedError:
                    assert process.poll() is None and time.monotonic() < end, (
                        "Firefox does not answer"
                    )
                    time.sleep(0.2)
            with connection:
                browser = Firefox(connection)
                browser.send("WebDriver:NewSession")
                yield browser
        finally:
            process.terminate()
            process.wait(30)
