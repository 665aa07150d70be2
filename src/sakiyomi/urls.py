"""Base URLs as people write them -> one root, and the addresses below it."""

import re
from typing import NamedTuple
from urllib.parse import quote, urljoin, urlsplit

from sakiyomi.errors import PlanError

_ENDPOINT = re.compile(r"/v1/(?:chat/completions|completions|models|responses|embeddings)$")
_DEFAULT_PORTS = {"http": 80, "https": 443}


class Address(NamedTuple):
    """Where a URL leads: an origin, and the target of the request line."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def authority(self) -> str:
        """`host[:port]` as the Host header wants it; IPv6 in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


def split_url(url: str) -> Address:
    """Take an http(s) URL apart. Raises PlanError that says how to write it."""
    text = url.strip()
    if not re.match(r"https?://", text, re.IGNORECASE):
        raise PlanError(f"{url!r} is no http(s) URL", f"write {_suggest(text)}")
    netloc = text.split("://", 1)[1].split("/", 1)[0].split("?", 1)[0].split("#", 1)[0]
    credentials, _, host_and_port = netloc.rpartition("@")
    if credentials:
        raise PlanError(
            f"{text.replace(credentials, '***')!r}: credentials in a URL are not sent",
            "put the key in an environment variable and name it: --api-key-env NAME",
        )
    if host_and_port.count(":") > 1 and "[" not in host_and_port:
        raise PlanError(
            f"{url!r}: an IPv6 address needs brackets", f"write {_suggest(host_and_port)}"
        )
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise PlanError(f"{url!r} is no URL: {error}", "write http://HOST:PORT") from error
    if not host:
        raise PlanError(f"{url!r} names no host", "write http://HOST:PORT")
    if not host.isascii():
        host = host.encode("idna").decode("ascii")
    target = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~")
    if parts.query:
        target += "?" + quote(parts.query, safe="/%:@!$&'()*+,;=~?")
    scheme = parts.scheme.lower()
    return Address(scheme, host, _DEFAULT_PORTS[scheme] if port is None else port, target)


def api_root(url: str) -> str:
    """The one root of an API, however it was given: without `/v1`, endpoint or last slash.

    `http://h:8000`, `http://h:8000/v1/` and `http://h:8000/v1/chat/completions` are the same root;
    `/v10` and `/av1` are folders like any other.
    """
    split_url(url)
    root = url.strip().split("#", 1)[0].split("?", 1)[0].rstrip("/")
    root = _ENDPOINT.sub("/v1", root)
    return re.sub(r"(?<=[^/:])/+v1$", "", root).rstrip("/")


def api_url(url: str, path: str) -> str:
    """The address of `path` (`/v1/chat/completions`, `/metrics`) below the root of `url`."""
    return api_root(url) + "/" + path.lstrip("/")


def page_candidates(url: str, paths: tuple[str, ...]) -> tuple[str, ...]:
    """Where a server's pages (`/metrics`, ...) may be: below the API's root, then the host's.

    A proxy may serve the API at `http://h/proxy/v1` and its metrics at `http://h/metrics`.
    """
    roots = (api_root(url), urljoin(api_root(url), "/").rstrip("/"))
    found = [f"{root}/{path.lstrip('/')}" for root in roots for path in paths]
    return tuple(dict.fromkeys(found))


def same_host(url: str, api: str) -> bool:
    """Whether a secret of `api` may go to `url`: the same host, and never from https to http."""
    one, other = split_url(url), split_url(api)
    return one.host == other.host and not (other.scheme == "https" and one.scheme == "http")


def _suggest(text: str) -> str:
    """What the user most likely meant."""
    bare = re.fullmatch(r"([0-9a-fA-F:]*::?[0-9a-fA-F:]*?):(\d{2,5})(/.*)?", text)
    if bare and text.count(":") > 1:
        return f"http://[{bare[1]}]:{bare[2]}{bare[3] or ''}"
    if re.fullmatch(r"[0-9a-fA-F:]+", text) and text.count(":") > 1:
        return f"http://[{text}]:PORT"
    if re.match(r"[\w.\-\[\]:]+(/|$)", text) and text:
        return f"http://{text}"
    return "http://HOST:PORT"
