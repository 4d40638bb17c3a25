"""System checks, commands and the admin."""

from __future__ import annotations

import io
import json
import re

import pytest
from django_support import (  # noqa: F401
    eventually, locks, project, servers, tables, using_locks,
)

from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.core import checks
from django.core.management import CommandError, call_command
from django.db import connections
from django.test import Client, override_settings

import lockwarden
from lockwarden.django import conf, store, urls

STRANGE = "<script>alert(1)</script>\u202e\x1b[31m/'\"&%00 {x}"


# Checks


def found(**asked) -> set:
    return {message.id for message in checks.run_checks(**asked) if message.id.startswith("lockwarden.")}


def test_a_good_project_passes(locks):
    assert found() == found(include_deployment_checks=True) == found(databases=["default"]) == set()


def test_wrong_settings_are_errors(project):
    wrong = [
        7, {"URLS": "memory:"}, {"URL": "http://x"}, {"URL": 7}, {"URL": "memory:", "CACHE": "default"},
        {"CACHE": "nowhere"}, {"WAIT": "soon"}, {"WAIT": -1}, {"LEASE": 0}, {"GRACE": 1}, {"PREFIX": "lockwarden:x"},
        {"RETRY_AFTER": 0}, {"ANSWER": 7}, {"LABEL": 7},
    ]  # fmt: skip
    for one in wrong:
        with override_settings(LOCKWARDEN=one):
            assert "lockwarden.E001" in found(), one


def test_a_cache_that_is_not_on_redis_is_an_error(project):
    with override_settings(LOCKWARDEN={"CACHE": "default"}):
        assert "lockwarden.E002" in found()


def test_keys_in_small_letters_are_the_same():
    with override_settings(LOCKWARDEN={"url": "memory:", "wait": 3}):
        assert conf.conf().wait == 3


@pytest.mark.parametrize(
    "url",
    [
        "", "redis", "http://x", "redis://", "redis://:0x/0", "redis://x/y", "redis://user@x", "redis://x?z=1",
        "redis://x?db=y", "redis://x?protocol=4", "unix://", "file:", "memory:x",
    ],
)  # fmt: skip
def test_what_the_check_refuses_the_library_refuses_too(url):
    assert urls.problem(url) is not None
    with pytest.raises(lockwarden.Invalid):
        lockwarden.connect(url)


def test_what_it_lets_pass_is_usable(locks):
    assert urls.problem(locks.url) is None
    for url in ("memory:", "file:///var/x", "rediss://:p@x/1", "unix:///run/x?db=2", "redis://u:p@[::1]:7/1?prefix=a"):
        assert urls.problem(url) is None


def test_a_url_of_ours_for_redis_py():
    assert urls.for_redis_py("redis://u:p@x:7/1?prefix=a&protocol=2") == "redis://u:p@x:7/1"
    assert urls.for_redis_py("redis+unix:///run/x?db=2&prefix=a") == "unix:///run/x?db=2"
    assert urls.place("redis://localhost/1") == urls.place("redis://:p@127.0.0.1:6379/?db=1")


def test_memory_is_for_one_process(project):
    with override_settings(LOCKWARDEN={"URL": "memory:"}):
        assert "lockwarden.W003" in found()


def test_a_cache_beside_the_locks_is_told(servers, project):
    from conftest import SERVERS

    server = servers(SERVERS[0])
    cache = {"BACKEND": "lockwarden.django.cache.RedisCache", "LOCATION": server.url()}
    with override_settings(LOCKWARDEN={"URL": server.url()}, CACHES={"default": cache}):
        assert "lockwarden.W004" in found()
    with override_settings(LOCKWARDEN={"URL": server.url(3)}, CACHES={"default": cache}):
        assert "lockwarden.W004" not in found()


def test_a_missing_middleware_is_told(locks):
    with override_settings(MIDDLEWARE=[]):
        assert "lockwarden.W005" in found()


def test_atomic_requests_is_a_hint(locks, monkeypatch):
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    assert "lockwarden.I006" in found()


def test_a_store_that_is_away_is_told_only_when_asked(project):
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        with override_settings(LOCKWARDEN={"URL": f"redis://:secret@127.0.0.1:{probe.getsockname()[1]}"}):
            assert found() == set()
            assert found(include_deployment_checks=True) == {"lockwarden.E007"}
            # Of migrate, too: a warning, which does not stop it.
            assert found(databases=["default"]) == {"lockwarden.W007"}
            for message in checks.run_checks(include_deployment_checks=True):
                assert "secret" not in str(message)


def test_a_server_that_evicts_is_told(own_server, project):
    with using_locks(own_server.url()):
        own_server.redis.config_set("maxmemory-policy", "allkeys-lru")
        assert found() == set()
        assert found(include_deployment_checks=True) == {"lockwarden.W008"}


def test_no_migration_is_missing(tables):
    call_command("makemigrations", "lockwarden", check=True, dry_run=True, verbosity=0)


# Commands


def command(*asked: str, **options) -> str:
    out = io.StringIO()
    call_command(*asked, stdout=out, stderr=io.StringIO(), **options)
    return out.getvalue()


def test_ls_lists_holders_and_who_waits(locks):
    assert command("lockwarden_ls").split() == "NAME HOLDER HOST PID HELD LEASE LEFT STATE WAITING".split()
    with locks.held("stock:7"), locks.held("user:1"):
        text = command("lockwarden_ls")
        assert "stock:7" in text and "user:1" in text and "other" in text
        assert "user:1" not in command("lockwarden_ls", "stock:*")
        told = json.loads(command("lockwarden_ls", "stock:*", "--json"))
        assert [one["name"] for one in told] == ["stock:7"]
        assert told[0]["holders"][0]["label"] == "other" and "token" not in told[0]["holders"][0]


def test_ls_writes_out_what_a_terminal_would_act_on(locks):
    with locks.held(STRANGE):
        text = command("lockwarden_ls")
        assert "\x1b" not in text and "\u202e" not in text and r"\x1b[31m" in text
        assert json.loads(command("lockwarden_ls", "--json"))[0]["name"] == STRANGE


def test_a_store_that_is_away_is_an_error_of_the_command(project):
    with override_settings(LOCKWARDEN={"URL": "redis://127.0.0.1:1"}):
        for asked in (["lockwarden_ls"], ["lockwarden_revoke", "x"]):
            with pytest.raises(CommandError):
                command(*asked)


def test_revoke_lists_first_and_changes_nothing_when_dry(locks):
    with locks.held("stock:7") as held:
        text = command("lockwarden_revoke", "stock:7", "--dry-run")
        assert "other" in text and "A dry run" in text and held.check()
        told = json.loads(command("lockwarden_revoke", "stock:7", "--dry-run", "--json"))
        assert told["dry_run"] and told["revoked"] == [] and held.check()


@pytest.mark.parametrize("answer", ["n", "", None])
def test_revoke_asks(locks, monkeypatch, answer):
    def answered():
        if answer is None:
            raise EOFError
        return answer

    monkeypatch.setattr("builtins.input", answered)
    with locks.held("stock:7") as held:
        with pytest.raises(CommandError, match="nothing was revoked"):
            command("lockwarden_revoke", "stock:7")
        assert held.check()


def test_revoke_revokes(locks, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda: "y")
    with locks.held("stock:7") as held:
        assert "Revoked from other" in command("lockwarden_revoke", "stock:7", "--at-once")
        eventually(lambda: held.lost, what="the loss")
        assert locks.is_free("stock:7")
    with locks.held("stock:7") as held:
        told = json.loads(command("lockwarden_revoke", "stock:7", "--no-input", "--json"))
        assert [one["label"] for one in told["revoked"]] == ["other"] and told["revoked"][0]["ends_in_s"] > 0
        eventually(lambda: locks.is_free("stock:7"), what="the end of the lock")
        assert held.lost


def test_revoke_of_one_holder_of_several(locks):
    with locks.other.shared_lock("catalog", owner="a", if_lost="ignore") as one:
        with locks.other.shared_lock("catalog", owner="b", if_lost="ignore") as other:
            holders = json.loads(command("lockwarden_ls", "--json"))[0]["holders"]
            its = [holder["id"] for holder in holders if holder["fence"] == one.fence]
            command("lockwarden_revoke", "catalog", "--holder", its[0], "--no-input", "--at-once")
            eventually(lambda: one.lost, what="the loss")
            assert other.check()


def test_revoke_of_nobody(locks):
    with pytest.raises(CommandError, match="nobody"):
        command("lockwarden_revoke", "stock:7", "--no-input")


# The admin


@pytest.fixture
def people(locks):
    """A client for each: who may look, who may revoke, and who may neither."""
    User.objects.all().delete()
    LogEntry.objects.all().delete()

    def client(name: str, *permissions: str) -> Client:
        user = User.objects.create(username=name, is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        its = Client()
        its.force_login(user)
        return its

    return {
        "none": client("none"),
        "looks": client("looks", "view_lock"),
        "revokes": client("revokes", "view_lock", "revoke_lock"),
    }


LIST, REVOKE = "/admin/lockwarden/lock/", "/admin/lockwarden/lock/revoke/"


def test_who_may_look_sees_the_locks(locks, people):
    with locks.held("stock:7"):
        text = people["looks"].get(LIST).content.decode()
        assert "stock:7" in text and "other" in text and "Revoke" not in text
        assert "Revoke" in people["revokes"].get(LIST).content.decode()
        assert "stock:7" not in people["looks"].get(LIST + "?q=user").content.decode()
    assert people["none"].get(LIST).status_code == 403
    assert Client().get(LIST).status_code == 302
    assert LIST in people["looks"].get("/admin/").content.decode()


def test_nothing_can_be_added_changed_or_deleted(locks, people):
    for path in ("add/", "x/change/", "x/delete/"):
        assert people["revokes"].get(LIST + path).status_code == 404


def test_names_are_text(locks, people):
    with locks.held(STRANGE):
        for path in (LIST, REVOKE):
            text = people["revokes"].get(path, {"name": STRANGE}).content.decode()
            assert "<script>alert" not in text and "&lt;script&gt;alert(1)" in text
            # In the form it stands as it is, for the next request; what people see is written out.
            assert r"\u202e" in text
        assert people["revokes"].post(REVOKE, form(people, STRANGE)).status_code == 302
        eventually(lambda: locks.is_free(STRANGE), what="the end of the lock")


def test_a_token_is_never_shown(locks, people):
    with locks.held("stock:7") as held:
        for path in (LIST, REVOKE + "?name=stock:7"):
            assert held.token not in people["revokes"].get(path).content


def form(people, name: str, **more) -> dict:
    """What the page of confirmation would send."""
    page = people["revokes"].get(REVOKE, {"name": name}).content.decode()
    ids = re.findall(r'name="holder" value="([^"]+)"', page)
    return {"name": name, "confirmed": "yes", "holder": ids, "at_once": "yes", **more}


def test_revoke_wants_its_own_permission(locks, people):
    with locks.held("stock:7") as held:
        data = form(people, "stock:7")
        for who in ("none", "looks"):
            assert people[who].get(REVOKE, {"name": "stock:7"}).status_code == 403
            assert people[who].post(REVOKE, data).status_code == 403
        assert held.check() and LogEntry.objects.count() == 0


def test_revoke_wants_confirmation_a_post_and_a_token(locks, people):
    with locks.held("stock:7") as held:
        data = form(people, "stock:7")
        assert people["revokes"].get(REVOKE, data).status_code == 200
        page = people["revokes"].post(REVOKE, {"name": "stock:7"})
        assert page.status_code == 200 and b"These lose it" in page.content
        assert b"csrfmiddlewaretoken" in page.content
        forged = Client(enforce_csrf_checks=True)
        forged.force_login(User.objects.get(username="revokes"))
        assert forged.post(REVOKE, data).status_code == 403
        assert held.check()


def test_revoke_takes_the_lock_away_and_is_on_record(locks, people):
    with locks.held("stock:7") as held:
        answer = people["revokes"].post(REVOKE, form(people, "stock:7"), follow=True)
        assert b"was revoked from other" in answer.content
        eventually(lambda: held.lost, what="the loss")
        assert locks.is_free("stock:7")
    entry = LogEntry.objects.get()
    assert entry.object_id == "stock:7" and entry.user.username == "revokes"


def test_revoke_is_delayed_unless_at_once(locks, people):
    with locks.held("stock:7") as held:
        people["revokes"].post(REVOKE, form(people, "stock:7", at_once=""))
        assert [one["state"] for one in locks.holders("stock:7")] == ["revoked"]
        eventually(lambda: held.lost and locks.is_free("stock:7"), what="the end of the lock")


def test_revoke_hurts_only_who_was_shown(locks, people):
    with locks.held("stock:7"):
        data = form(people, "stock:7")
    with locks.held("stock:7") as next_one:
        answer = people["revokes"].post(REVOKE, data, follow=True)
        assert b"nothing was revoked" in answer.content and next_one.check()
    answer = people["revokes"].get(REVOKE, {"name": "stock:7"}, follow=True)
    assert b"Nobody holds the lock" in answer.content


def test_a_store_that_is_away_is_told_on_the_page(locks, people):
    with override_settings(LOCKWARDEN={"URL": "redis://127.0.0.1:1"}):
        page = people["revokes"].get(LIST)
        assert page.status_code == 200 and b"errornote" in page.content
        assert people["revokes"].get(REVOKE, {"name": "x"}).status_code == 302
    assert store.warden().names() == []
