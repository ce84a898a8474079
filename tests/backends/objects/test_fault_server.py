"""The server with faults does what it says: asked without a client of S3."""

import http.client
import urllib.error
import urllib.parse
import urllib.request
from xml.etree import ElementTree

import pytest

from tests.kit.objects.fault_server import ERRORS

ODD = [b"a/%s/1" % name for name in (b" ?#%&+", "é日".encode(), b"..", b".", b"", b"\t\n", b"<&>")]
_S3 = {"s3": "http://s3.amazonaws.com/doc/2006-03-01/"}


def get(server, key, **headers):
    url = f"{server.url}/{urllib.parse.quote(key)}"
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=names)) as response:
            return response.status, dict(response.headers), response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read()


def keys(server, bucket, **query):
    """Keys, common prefixes and continuation token of one page."""
    names = {name.replace("_", "-"): value for name, value in query.items()}
    text = urllib.parse.urlencode({"list-type": "2", "encoding-type": "url"} | names)
    with urllib.request.urlopen(f"{server.url}/{bucket}?{text}") as response:
        page = ElementTree.fromstring(response.read())
    found, prefixes = (
        [urllib.parse.unquote_to_bytes(e.text or "") for e in page.findall(path, _S3)]
        for path in ("s3:Contents/s3:Key", "s3:CommonPrefixes/s3:Prefix")
    )
    return found, prefixes, page.findtext("s3:NextContinuationToken", "", _S3)


def test_objects_with_odd_keys_are_kept_and_listed_in_the_order_of_bytes(server):
    for key in ODD:
        server.put(b"data/" + key, key)
    assert [get(server, b"data/" + key)[2] for key in ODD] == ODD
    assert keys(server, "data")[0] == sorted(ODD)


def test_a_list_is_cut_into_pages(server):
    names = [b"a-b/1", b"a/1", b"a/2", b"b/1", b"c"]
    for name in names:
        server.put(b"data/t/" + name, b"")
    server.set(page=2)
    found, token = [], ""
    for _ in range(3):
        page, _, token = keys(server, "data", prefix="t/", continuation_token=token)
        found.append(page)
    assert [len(page) for page in found] == [2, 2, 1]
    assert [name for page in found for name in page] == [b"t/" + name for name in names]
    assert token == ""
    server.set(page=1000)
    assert keys(server, "data", prefix="t/", delimiter="/") == (
        [b"t/c"],
        [b"t/a-b/", b"t/a/", b"t/b/"],
        "",
    )
    assert keys(server, "data", prefix="t/", start_after="t/a/1", max_keys="1")[0] == [b"t/a/2"]
    server.set(page=2)
    _, first, token = keys(server, "data", prefix="t/", delimiter="/")
    assert (first, bool(token)) == ([b"t/a-b/", b"t/a/"], True)
    rest = keys(server, "data", prefix="t/", delimiter="/", continuation_token=token)
    assert rest == ([b"t/c"], [b"t/b/"], "")


def test_ranges_and_conditions(server):
    server.put("data/x", b"0123456789")
    _, headers, _ = get(server, b"data/x")
    assert get(server, b"data/x", Range="bytes=2-4")[::2] == (206, b"234")
    assert get(server, b"data/x", Range="bytes=8-100")[::2] == (206, b"89")
    assert get(server, b"data/x", Range="bytes=-3")[::2] == (206, b"789")
    assert get(server, b"data/x", Range="bytes=10-")[0] == 416
    assert get(server, b"data/x", If_Match=headers["ETag"])[0] == 200
    server.put("data/x", b"9876543210")
    assert get(server, b"data/x", If_Match=headers["ETag"])[0] == 412
    server.delete("data/x")
    assert get(server, b"data/x")[0] == 404
    assert get(server, b"none/x")[0] == 404


def test_a_directory_is_served_as_it_is(server, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1").write_bytes(b"one")
    server.serve("files", tmp_path)
    _, before, data = get(server, b"files/a/1")
    (tmp_path / "a" / "1").write_bytes(b"another")
    _, after, changed = get(server, b"files/a/1")
    assert (data, changed) == (b"one", b"another")
    assert before["ETag"] != after["ETag"]
    assert get(server, b"files/a")[0] == 404
    assert keys(server, "files")[0] == [b"a/1"]


@pytest.mark.parametrize("mode", ERRORS)
def test_errors_come_as_often_as_asked_and_are_logged(server, mode):
    server.put("data/x", b"0123456789")
    server.fail(mode, n=1, skip=1, arg=7, key="data/x")
    status, code = ERRORS[mode]
    answers = [get(server, b"data/x") for _ in range(3)]
    assert [answer[0] for answer in answers] == [200, status, 200]
    assert code.encode() in answers[1][2]
    assert answers[1][1]["Retry-After"] == "7"
    assert [request.fault for request in server.log()] == ["", mode, ""]


def test_a_body_is_cut_and_the_object_replaced(server):
    server.put("data/x", b"0123456789")
    server.fail("cut-swap")
    with pytest.raises(http.client.IncompleteRead) as caught:
        get(server, b"data/x")
    assert caught.value.partial == b"01234"
    assert get(server, b"data/x")[2] == bytes(255 - byte for byte in b"0123456789")
