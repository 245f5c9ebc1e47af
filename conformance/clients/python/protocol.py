"""The loop of a conformance client in Python. See PROTOCOL.md."""

import hashlib
import json
import sys
import threading
import time


class Skip(Exception):
    """The library cannot do what the request asks for."""


def stream(request):
    """A body that can be read once."""
    for _ in range(10):
        time.sleep(request["pace"] / 10)
        yield b"x" * (request["body"] // 10)


def body(request):
    """What the library gets as the body."""
    if request["stream"]:
        return stream(request)
    return b"x" * request["body"] or None


def answer(send, request, lock):
    result = {"id": request["id"]}
    try:
        if request["upgrade"]:
            raise Skip("no upgrade")
        if request["cancel"]:
            raise Skip("a call cannot be canceled")
        result["status"], content = send(request)
        result["sha256"] = hashlib.sha256(content).hexdigest()
    except Skip as skip:
        result["skip"] = str(skip)
    except Exception as error:  # of any library
        result["error"] = f"{type(error).__name__}: {error}"
    with lock:
        print(json.dumps(result), flush=True)


def serve(name, send):
    """Calls send for each request. It returns the status and the body."""
    print(json.dumps({"client": name}), flush=True)
    lock = threading.Lock()
    for line in sys.stdin:
        threading.Thread(target=answer, args=(send, json.loads(line), lock), daemon=True).start()
