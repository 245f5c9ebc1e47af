"""curl --retry. Best: --retry-all-errors for idempotent requests, and no --retry for others."""

import subprocess
import sys
import tempfile

sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/python")
from protocol import Skip, serve  # noqa: E402

best = "-best" in sys.argv


def send(request):
    if request["stream"]:
        raise Skip("curl reads a stream before it sends it")
    args = ["curl", "--silent", "--show-error", "--noproxy", "*", "--location", "--write-out", "%{stderr}\n%{http_code}"]
    idempotent = request["method"] not in ("POST", "PATCH") or "Idempotency-Key" in request["headers"]
    if not best:
        args += ["--retry", "3"]
    elif idempotent:
        args += ["--retry", "5", "--retry-all-errors", "--retry-max-time", "15", "--speed-limit", "1", "--speed-time", "2"]
    if request["deadline"]:
        args += ["--max-time", str(request["deadline"])]
    if request["method"] == "HEAD":
        args += ["--head"]
    elif request["method"] != "POST":
        args += ["--request", request["method"]]
    for name, value in request["headers"].items():
        args += ["--header", f"{name}: {value}"]
    if request["body"] or request["method"] == "POST":
        args += ["--data-binary", "@-", "--header", "Content-Type: application/octet-stream"]
    # A retry begins a file anew, but not an output to a pipe.
    with tempfile.NamedTemporaryFile() as output:
        done = subprocess.run(
            args + ["--output", output.name, request["url"]], input=b"x" * request["body"], capture_output=True
        )
        content = open(output.name, "rb").read()
    message, _, status = done.stderr.decode().rpartition("\n")
    if done.returncode:
        raise OSError(message)
    return int(status), b"" if request["method"] == "HEAD" else content


version = subprocess.run(["curl", "--version"], capture_output=True, check=True).stdout.decode().split()[1]
serve(f"curl {version}", send)
