"""The server of a page: this machine alone, one page, nothing sent twice."""

from __future__ import annotations

import http.client
import json
import os
import threading

import pytest
from page_runs import rows_of, write_run, write_samples

from dtm.errors import ConfigError
from dtm.report.page.data import PageRun
from dtm.report.watch import HOST, PageServer


@pytest.fixture
def served(tmp_path):
    folder = write_run(tmp_path / "run", [rows_of(["a"], [0.25])] * 2)
    with PageServer([PageRun(folder, "run", "")], "run") as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield folder, server
        server.shutdown()


def ask(server, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(HOST, server.server_port, timeout=30)
    connection.putrequest("GET", path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, dict(answer.getheaders()), body


def test_the_page_is_live_and_its_data_is_sent_again_only_when_it_changed(served):
    folder, server = served
    status, _, page = ask(server, "/")
    assert status == 200
    assert b"connect-src 'self'" in page
    status, headers, body = ask(server, "/data.json")
    assert status == 200
    assert json.loads(body)["runs"][0]["samples"]["total"] == 2
    assert ask(server, "/data.json", If_None_Match=headers["ETag"])[0] == 304
    write_samples(folder, 30, 3.0, rows_of(["b"], [0.75]))
    status, later, body = ask(server, "/data.json", If_None_Match=headers["ETag"])
    assert status == 200
    assert later["ETag"] != headers["ETag"]
    assert json.loads(body)["runs"][0]["samples"]["total"] == 3


def test_other_names_of_this_machine_and_other_paths_are_refused(served):
    _, server = served
    assert ask(server, "/", Host="evil.example:80")[0] == 403
    assert ask(server, "/", Host=f"localhost:{server.server_port}")[0] == 200
    for path in ("/../config.yaml", "/metrics.jsonl", "/report.html"):
        assert ask(server, path)[0] == 404
    assert server.server_address[0] == "127.0.0.1"


def test_a_run_that_is_gone_is_told_and_the_server_goes_on(served):
    folder, server = served
    os.rename(folder.config, folder.path / "away")
    status, _, body = ask(server, "/data.json")
    assert status == 503
    assert b"config.yaml" in body
    os.rename(folder.path / "away", folder.config)
    assert ask(server, "/data.json")[0] == 200


def test_a_port_in_use_is_an_error_with_a_remedy(served):
    _, server = served
    with pytest.raises(ConfigError, match="Choose another with --port"):
        PageServer([], "run", server.server_port)
