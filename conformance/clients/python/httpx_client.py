"""httpx. Best: HTTPTransport(retries=5), which retries connections that cannot be made."""

import os
import sys

import httpx
from protocol import Skip, body, serve

retries = 5 if "-best" in sys.argv else 0
transport = httpx.HTTPTransport(retries=retries, http2=True, verify=os.environ["CONFORMANCE_CA"])
client = httpx.Client(transport=transport, follow_redirects=True, trust_env=False)


def send(request):
    if request["deadline"]:
        raise Skip("a call has no deadline")
    response = client.request(
        request["method"], request["url"], headers=request["headers"], content=body(request)
    )
    return response.status_code, response.content


serve(f"httpx {httpx.__version__}", send)
