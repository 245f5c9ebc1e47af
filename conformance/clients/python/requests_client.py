"""requests with urllib3's Retry. Best: the settings of urllib3's documentation for statuses."""

import sys

import requests
import urllib3
from protocol import Skip, body, serve
from requests.adapters import HTTPAdapter

session = requests.Session()
session.trust_env = False
session.verify = __import__("os").environ["CONFORMANCE_CA"]
best = "-best" in sys.argv
retries = urllib3.Retry(3)
if best:
    retries = urllib3.Retry(
        total=5, backoff_factor=0.5, status_forcelist=[408, 425, 429, 500, 502, 503, 504], raise_on_status=False
    )
for scheme in ("http://", "https://"):
    session.mount(scheme, HTTPAdapter(max_retries=retries, pool_connections=1000, pool_maxsize=100))


def send(request):
    if request["deadline"]:
        raise Skip("a call has no deadline")
    if request["url"].startswith("https:"):
        raise Skip("no HTTP/2")
    timeout = 2 if best else None
    response = session.request(
        request["method"], request["url"], headers=request["headers"], data=body(request), timeout=timeout
    )
    # requests 2.32 does this itself. Before, a body that breaks off is no error.
    length = response.headers.get("Content-Length")
    if response.request.method != "HEAD" and length and len(response.content) < int(length) and best:
        raise requests.ConnectionError("the body is not whole")
    return response.status_code, response.content


serve(f"requests {requests.__version__}, urllib3 {urllib3.__version__}", send)
