"""An S3 server for tests: moto's, with its objects in this process and a list of the requests received."""

import threading
import urllib.request
from collections.abc import Iterable
from typing import Any, NamedTuple

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server


class Request(NamedTuple):
    """``range``: as asked, ``bytes=0-99``, or empty."""

    method: str
    path: str
    range: str


class _Quiet(WSGIRequestHandler):
    def log(self, *args: object) -> None:
        pass


class ObjectServer:
    """Listens on loopback from the start; ``stop`` closes it, as a server that goes away."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self._app = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._serve, threaded=True, request_handler=_Quiet)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def seen(self, method: str, containing: str = "") -> list[Request]:
        return [each for each in self.requests if each.method == method and containing in each.path]

    def empty(self) -> None:
        """Remove all buckets: those of all servers in this process, which share them."""
        urllib.request.urlopen(
            urllib.request.Request(f"{self.endpoint}/moto-api/reset", method="POST")
        ).close()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _serve(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        self.requests.append(
            Request(environ["REQUEST_METHOD"], environ["PATH_INFO"], environ.get("HTTP_RANGE", ""))
        )
        response: Iterable[bytes] = self._app(environ, start_response)
        return response


def range_bytes(request: Request) -> int:
    """Bytes that a request asks for (RFC 9110, 14.1.2: both ends are included)."""
    first, _, last = request.range.removeprefix("bytes=").partition("-")
    return int(last) - int(first) + 1
