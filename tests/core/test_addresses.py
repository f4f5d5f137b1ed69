import pytest

from tasks.core.addresses import is_valid, named, shown

SIGNED = "https://me:secret@h:8080/a/b.png?X-Amz-Signature=secret&X-Amz-Date=1"


@pytest.mark.parametrize(
    ("location", "seen"),
    [
        (SIGNED, "https://h:8080/a/b.png"),
        ("http://[bad/x.png?secret", "http://[bad/x.png"),
        ("http://u:secret@[::1]:99999/x\n#secret", "http://[::1]:99999/x\n"),
        ("s3://b/x.png?secret", "s3://b/x.png"),
        ("http://", "http://"),
        ("/data/what?.csv", "/data/what?.csv"),
    ],
)
def test_what_is_shown_holds_no_secret_and_is_always_something(location: str, seen: str) -> None:
    assert shown(location) == seen


@pytest.mark.parametrize(
    "signed",
    [
        SIGNED.replace("secret", "other").replace("Date=1", "Date=2"),
        "https://h:8080/a/b.png?AWSAccessKeyId=A&Signature=s%2Fs&Expires=1",
        "https://h:8080/a/b.png?sv=2024&se=2025-01-01&sr=b&sp=r&skoid=1&sig=x%3D",
        "https://h:8080/a/b.png?ex=1&is=2&hm=3",
        "https://h:8080/a/b.png",
    ],
)
def test_an_address_that_is_signed_anew_names_the_same(signed: str) -> None:
    assert named(SIGNED) == named(signed) == "https://h:8080/a/b.png"


def test_a_query_that_says_which_file_it_is_still_does() -> None:
    names = {named(f"https://h/get?id={n}&token=secret") for n in range(3)}
    assert len(names) == 3 and not any("secret" in name or "id" in name for name in names)
    assert named("https://h/get?st=1") != named("https://h/get?st=2")
    assert named("s3://b/what?.png") == "s3://b/what?.png"


@pytest.mark.parametrize(
    "address",
    ["http://[bad/x", "http:///x", "s3:///x", "http://h:99999/x", "http://a b/x", "s3://a b/x", "https://"],
)
def test_an_address_without_a_host_or_bucket_is_none(address: str) -> None:
    assert not is_valid(address)


@pytest.mark.parametrize(
    "address",
    ["http://h", "https://u:p@h.x:80/y?z#w", "http://[::1]:1/x", "s3://b.c-d/x y", "http://münchen.de/"],
)
def test_an_address_with_one_is_one(address: str) -> None:
    assert is_valid(address)
