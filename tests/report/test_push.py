"""Pushing to the hub: the repository gets the exported files, and obstacles are told before any work.

The hub is a stand-in on this machine; commands run in processes of their own, because the package reads
HF_ENDPOINT when it is imported.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

import dtm
from dtm.cli import main
from dtm.report import push

pytest.importorskip("huggingface_hub")
TOKEN = "hf_stand_in"
LONGEST = 64 << 20
"""Bytes of a request that the stand-in reads."""


class Hub(ThreadingHTTPServer):
    """The calls of `huggingface_hub` that an upload makes; keeps the files of the commits."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.asked: list[str] = []
        self.created: list[dict] = []
        self.summaries: list[str] = []
        self.stored: dict[str, bytes] = {}
        self.files: dict[str, bytes] = {}
        self.role, self.refuses_commits = "write", False

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, object]:
        """Status and value for a request with the right token."""
        self.asked.append(f"{method} {path}")
        match method, path.partition("?")[0].strip("/").split("/"):
            case "GET", ["api", "whoami-v2"]:
                token = {"accessToken": {"role": self.role}}
                return 200, {"type": "user", "name": "me", "orgs": [{"name": "team"}], "auth": token}
            case "POST", ["api", "repos", "create"]:
                self.created.append(json.loads(body))
                return 200, {"url": f"{self.url}/me/model", "name": "me/model"}
            case "POST", ["api", "validate-yaml"]:
                return 200, {"errors": [], "warnings": []}
            case "POST", ["api", "models", "me", "model", "preupload", "main"]:
                return 200, {"files": [self.mode(file) for file in json.loads(body)["files"]]}
            case "POST", ["me", "model.git", "info", "lfs", "objects", "batch"]:
                return 200, {"objects": [self.place(one) for one in json.loads(body)["objects"]]}
            case "PUT", ["lfs", oid]:
                assert hashlib.sha256(body).hexdigest() == oid
                self.stored[oid] = body
                return 200, {}
            case "POST", ["api", "models", "me", "model", "commit", "main"]:
                return self.commit([json.loads(line) for line in body.splitlines()])
        return 404, {"error": f"the stand-in has no {method} {path}"}

    def mode(self, file: dict) -> dict:
        large = file["path"].endswith((".safetensors", ".png"))
        return {"path": file["path"], "uploadMode": "lfs" if large else "regular", "shouldIgnore": False}

    def place(self, one: dict) -> dict:
        upload = {"href": f"{self.url}/lfs/{one['oid']}"}
        return {"oid": one["oid"], "size": one["size"], "actions": {"upload": upload}}

    def commit(self, lines: list[dict]) -> tuple[int, object]:
        if self.refuses_commits:
            return 403, {"error": "the repository is full"}
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                self.summaries.append(value["summary"])
            elif line["key"] == "file":
                self.files[value["path"]] = base64.b64decode(value["content"])
            else:
                self.files[value["path"]] = self.stored[value["oid"]]
        return 200, {"commitUrl": f"{self.url}/me/model/commit/{'0' * 40}", "commitOid": "0" * 40}


class Handler(BaseHTTPRequestHandler):
    """Hands requests to the stand-in; without the token they are refused."""

    server: Hub
    timeout = 20

    def respond(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        assert size <= LONGEST
        body = self.rfile.read(size)
        is_known = self.headers.get("Authorization") == f"Bearer {TOKEN}" or self.path.startswith("/lfs/")
        status, value = (401, {"error": "who?"})
        if is_known:
            status, value = self.server.answer(self.command, self.path, body)
        text = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_PUT = respond

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing."""


@pytest.fixture
def hub():
    with Hub() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(10)


@pytest.fixture
def run(hub, tmp_path):
    """Run a command with the stand-in as its hub: exit code, output, errors."""

    def command(*arguments: object, token: str | None = TOKEN) -> tuple[int, str, str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        environment |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "NO_PROXY": "127.0.0.1"}
        environment |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
        environment |= {"PYTHONPATH": str(Path(dtm.__file__).parents[1])}
        done = subprocess.run(
            [sys.executable, "-m", "dtm", *map(str, arguments)],
            env=environment if token is None else {**environment, "HF_TOKEN": token},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.returncode, done.stdout, " ".join(done.stderr.split())

    return command


def test_the_repository_gets_the_export_with_fingerprint_and_curves(finished, hub, run, tmp_path):
    out = tmp_path / "export"
    code, printed, errors = run("export", finished.path, "--out", out, "--push", "me/model", "--private")
    assert code == 0, errors
    assert f"hub:   {hub.url}/me/model" in printed
    assert hub.created[0] | {"name": "model", "organization": "me", "visibility": "private"} == hub.created[0]
    assert hub.summaries == ["dtm export of maze-small"]
    assert hub.files == {path.name: path.read_bytes() for path in out.iterdir()}
    assert {"README.md", "curves.png", "fingerprint.json", "model.safetensors"} <= hub.files.keys()
    pulled = tmp_path / "pulled"
    pulled.mkdir()
    for name, content in hub.files.items():
        (pulled / name).write_bytes(content)
    for name, value in finished.model.state_dict().items():
        assert torch.equal(dtm.load_model(pulled).state_dict()[name], value)
    card = hub.files["README.md"].decode()
    assert "![Held-out measures against the optimiser's steps](curves.png)" in card
    assert hub.files["curves.png"].startswith(b"\x89PNG")
    facts = json.loads(hub.files["fingerprint.json"])
    original = json.loads(finished.folder.fingerprint.read_text())
    assert facts["items"] == original["items"]
    assert "| the held-out prompts | `" in card
    assert f"Packages: commit {original['packages']['commit']}, torch {torch.__version__}" in card
    assert str(finished.path.parent) not in card + json.dumps(facts)  # no folder of this machine


def test_a_failed_upload_keeps_the_export_and_says_how_to_go_on(finished, hub, run, tmp_path):
    hub.refuses_commits = True
    code, printed, errors = run("export", finished.path, "--out", tmp_path / "kept", "--push", "me/model")
    assert code == 2
    assert f"model: {tmp_path / 'kept'}" in printed
    assert "the upload to me/model failed:" in errors
    assert f"Try again with: hf upload me/model {tmp_path / 'kept'}" in errors
    assert (tmp_path / "kept" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("repository", "token", "role", "said"),
    [
        ("me/model", None, "write", "not logged in to the hub. Run `hf auth login`, or set HF_TOKEN"),
        ("me/model", "wrong", "write", "the hub did not accept the login: "),
        ("me/model", TOKEN, "read", "the token can only read. Run `hf auth login`"),
        ("you/model", TOKEN, "write", "you are logged in as me, and may write to me, team"),
    ],
)
def test_obstacles_are_told_before_any_work(repository, token, role, said, finished, hub, run, tmp_path):
    hub.role = role
    code, _, errors = run(
        "export", finished.path, "--out", tmp_path / "new", "--push", repository, token=token
    )
    assert (code, said in errors) == (2, True), errors
    assert not (tmp_path / "new").exists()
    assert set(hub.asked) <= {"GET /api/whoami-v2"}


def test_mistakes_are_named(finished, tmp_path, monkeypatch, capsys):
    flags = ["export", str(finished.path), "--out", str(tmp_path / "new")]
    assert main([*flags, "--push", "model"]) == 2
    assert "--push model: write USER/NAME" in capsys.readouterr().err
    assert main([*flags, "--private"]) == 2
    assert "--private needs --push" in capsys.readouterr().err
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main([*flags, "--push", "me/model"]) == 2
    assert "pip install -e '.[hub]'" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_an_adapter_over_a_local_folder_is_told_to_need_its_base(tmp_path):
    assert push.local_base(tmp_path) is None
    for base, told in (("GSAI-ML/LLaDA-8B-Instruct", None), (str(tmp_path), str(tmp_path))):
        (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
        assert push.local_base(tmp_path) == told
