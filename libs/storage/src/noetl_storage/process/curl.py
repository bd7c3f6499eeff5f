"""libcurl as every client of ours uses it: HTTP alone, and trust in what Python trusts."""

import ssl

import pycurl


def create_curl_handle() -> pycurl.Curl:
    """Create a handle; its connection stays open for the next request."""
    curl = pycurl.Curl()
    curl.setopt(pycurl.NOSIGNAL, 1)
    curl.setopt(pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS)
    curl.setopt(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1)
    trusted = ssl.get_default_verify_paths()
    if trusted.cafile is not None:
        curl.setopt(pycurl.CAINFO, trusted.cafile)
    if trusted.capath is not None:
        curl.setopt(pycurl.CAPATH, trusted.capath)
    return curl
