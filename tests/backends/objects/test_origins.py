"""What the doctor says of object stores: where endpoints and credentials come from, no secret."""

import os

import pytest

from dali_storage.backends.objects.store import origins

SECRET = "canary-secret-0123456789"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A home directory, and nothing in the environment."""
    for name in [*os.environ]:
        if name.startswith(("AWS_", "GOOGLE_", "DALI_GCS_", "AZURE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".aws").mkdir()
    return tmp_path / ".aws"


def found():
    statuses = [*origins()]
    assert SECRET not in repr(statuses)
    return {status.name: shown(status) for status in statuses}


def shown(status):
    problem = status.problem
    return status.kind + (f" | {problem.reason} | {problem.remedy}" if problem else "")


def test_without_anything_amazon_is_asked():
    assert found() == {"s3://": "Amazon, credentials: instance metadata, if any"}


def test_keys_in_the_environment_come_first(home, monkeypatch):
    (home / "credentials").write_text(
        f"[default]\naws_access_key_id = AK\naws_secret_access_key = {SECRET}\n"
    )
    assert found() == {"s3://": "Amazon, credentials: profile 'default'"}
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AK")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9000")
    assert found() == {"s3://": "http://127.0.0.1:9000, credentials: environment"}


def test_a_profile_that_needs_a_login_is_not_logged_in(home, monkeypatch):
    (home / "config").write_text(
        "[profile work]\ncredential_process = /bin/false\nendpoint_url = https://s3.example\n"
    )
    monkeypatch.setenv("AWS_PROFILE", "work")
    assert found() == {"s3://": "https://s3.example, credentials: profile 'work'"}


def test_where_a_role_comes_from(monkeypatch):
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", f"/{SECRET}")
    assert found() == {"s3://": "Amazon, credentials: AWS_WEB_IDENTITY_TOKEN_FILE"}


def test_what_is_wrong_is_said(monkeypatch):
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    (status,) = found().values()
    assert status.startswith("Amazon, no credentials | no credentials were found | set them in")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    (status,) = found().values()
    assert status.startswith("object store | only AWS_SECRET_ACCESS_KEY is set | set both")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://user:{SECRET}@host")
    (status,) = found().values()
    assert "AWS_ENDPOINT_URL must be like http://host:port" in status
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    (status,) = found().values()
    assert "there is no profile 'nobody'" in status


def test_of_other_stores_the_names_of_their_variables(monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", SECRET)
    monkeypatch.setenv("DALI_GCS_ENDPOINT_URL", "http://127.0.0.1:1")
    found_ = found()
    variables = "AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_ACCOUNT_NAME"
    assert found_["az://"] == f"the public endpoint, by {variables}"
    assert found_["gs://"] == "http://127.0.0.1:1, by DALI_GCS_ENDPOINT_URL"
