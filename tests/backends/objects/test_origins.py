"""What the doctor says of object stores: where endpoints and credentials come from, no secret."""

import pytest

from dali_storage.backends.objects.store import origins

SECRET = "canary-secret-0123456789"


def found():
    statuses = [*origins()]
    assert SECRET not in repr(statuses)
    return {status.name: shown(status) for status in statuses}


def shown(status):
    problem = status.problem
    return status.kind + (f" | {problem.reason} | {problem.remedy}" if problem else "")


KEYS = f"aws_access_key_id = AK\naws_secret_access_key = {SECRET}\n"
PAIR = {"AWS_ACCESS_KEY_ID": "AK", "AWS_SECRET_ACCESS_KEY": SECRET}
LOGIN = "[profile work]\ncredential_process = /bin/false\nendpoint_url = https://s3.example\n"


@pytest.mark.parametrize(
    ("variables", "file", "expected"),
    [
        ({}, "", "Amazon, credentials: instance metadata, if any"),
        ({}, f"[default]\n{KEYS}", "Amazon, credentials: profile 'default'"),
        (
            PAIR | {"AWS_ENDPOINT_URL": "http://127.0.0.1:9000"},
            f"[default]\n{KEYS}",
            "http://127.0.0.1:9000, credentials: environment",
        ),
        ({"AWS_PROFILE": "work"}, LOGIN, "https://s3.example, credentials: profile 'work'"),
        (
            {"AWS_WEB_IDENTITY_TOKEN_FILE": f"/{SECRET}"},
            "",
            "Amazon, credentials: AWS_WEB_IDENTITY_TOKEN_FILE",
        ),
    ],
)
def test_endpoint_and_credentials_come_from_the_environment_or_a_profile(
    home, monkeypatch, variables, file, expected
):
    (home / "config").write_text(file)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert found() == {"s3://": expected}


@pytest.mark.usefixtures("home")
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


@pytest.mark.usefixtures("home")
def test_of_other_stores_the_names_of_their_variables(monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", SECRET)
    monkeypatch.setenv("DALI_GCS_ENDPOINT_URL", "http://127.0.0.1:1")
    found_ = found()
    variables = "AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_ACCOUNT_NAME"
    assert found_["az://"] == f"the public endpoint, by {variables}"
    assert found_["gs://"] == "http://127.0.0.1:1, by DALI_GCS_ENDPOINT_URL"
