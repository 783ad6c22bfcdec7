"""XLA's programs on disk: their users, place and number, and that they never break a program.

Each process here has a directory of its own; the tests around run without.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support import processes
from torch_jax import config
from torch_jax.compiler import disk_cache
from torch_jax.compiler.cache_files import CacheFiles

PRELUDE = """
import json, jax, torch
hits = []
jax.monitoring.register_event_listener(
    lambda name, **_: name.endswith("cache_hits") and hits.append(name)
)
def compute():
    x = torch.arange(7.0, device="jax")
    return (x.sin() @ x).item()
"""
_SETTINGS = {"TORCH_JAX_CACHE": "1", "TORCH_JAX_EAGER_ON_CPU": "xla"}
USE = "print(json.dumps([compute(), len(hits)]))"


def start(code: str, **environment: str | None) -> subprocess.Popen[str]:
    """Run code in a fresh process, with these variables of its environment (None: without)."""
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + code],
        env=processes.environment(_SETTINGS | environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]):
    """What the process printed, as JSON, and what it complained of."""
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return json.loads(out.splitlines()[-1]), errors


def run(code: str, **environment: str | None):
    """As :func:`start` and :func:`finish`."""
    return finish(start(code, **environment))


def entries(directory: Path) -> list[Path]:
    """The files of the cache in a directory."""
    return sorted(directory.glob("*.entry"))


@pytest.mark.slow
def test_a_second_process_compiles_nothing_and_mends_what_is_damaged(tmp_path):
    directory = tmp_path / "new" / "cache"
    (expected, hits), errors = run(USE, TORCH_JAX_CACHE_DIR=str(directory))
    assert not errors and hits == 0
    whole = {path: path.read_bytes() for path in entries(directory)}
    assert directory.stat().st_mode & 0o077 == 0
    (result, hits), errors = run(USE, TORCH_JAX_CACHE_DIR=str(directory))
    assert not errors  # XLA speaks up where code was compiled for another machine
    assert result == expected and hits == len(whole) > 3
    assert {path: path.read_bytes() for path in entries(directory)} == whole
    ways = (lambda c: c[:-7], lambda c: b"", lambda c: c[:50] + b"?" + c[51:], lambda c: c[::-1])
    damaged = {path: ways[n % 4](content) for n, (path, content) in enumerate(whole.items())}
    for path, content in damaged.items():
        path.write_bytes(content)
    (result, hits), errors = run(USE, TORCH_JAX_CACHE_DIR=str(directory))
    assert result == expected and hits == 0
    assert errors.count("is damaged") == len(whole)
    assert entries(directory) == sorted(whole)
    assert all(path.read_bytes() != content for path, content in damaged.items())


@pytest.mark.slow
def test_a_directory_that_cannot_be_written_is_warned_of_once():
    directory = "/proc/self/fd"  # where nobody may write, not even root
    (_, hits), errors = run(USE, TORCH_JAX_CACHE_DIR=directory)
    assert hits == 0 and errors.count("takes no more entries") == 1 and "Error" not in errors


@pytest.mark.parametrize("place", ["file", "file/below", "read-only"])
def test_what_cannot_be_written_can_be_read(tmp_path, caplog, monkeypatch, place):
    (tmp_path / "file").write_text("in the way")
    files = CacheFiles(tmp_path / place, 1000)
    if place == "read-only":
        files.put("before", b"value")
        monkeypatch.setattr(Path, "write_bytes", _refuse)  # root may write anywhere
    for key in "ab":
        files.put(key, b"value")
        assert files.get(key) is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "takes no more entries in this process" in caplog.text
    assert files.get("before") == (b"value" if place == "read-only" else None)


def _refuse(path: Path, content: bytes) -> None:
    raise PermissionError(13, "Permission denied", str(path))


@pytest.mark.slow
def test_many_processes_share_a_directory(tmp_path):
    others = [start(USE, TORCH_JAX_CACHE_DIR=str(tmp_path)) for _ in range(3)]
    results = [finish(process) for process in others]
    assert {result for (result, _), _ in results} == {results[0][0][0]}
    assert not any(errors for _, errors in results)
    assert {path.suffix for path in tmp_path.iterdir()} == {".entry"}


SET = "jax.config.update('jax_compilation_cache_dir', 'THEIRS')"
USERS = {
    "environment": ("", {"JAX_COMPILATION_CACHE_DIR": "THEIRS"}, True),
    "before the first use": (SET, {}, True),
    "after it": (f"torch.ones(2, device='jax').sin(); {SET}", {}, True),
    "switched off": ("jax.config.update('jax_enable_compilation_cache', False)", {}, False),
}
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("environment", "switched off")]


@pytest.mark.parametrize("name", ["before the first use", "after it", *SLOW])
@pytest.mark.slow
def test_what_the_user_tells_jax_comes_first(tmp_path, name):
    code, environment, is_used = USERS[name]
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    environment = {key: str(theirs) for key in environment}
    code = f"""
{code.replace("THEIRS", str(theirs))}
first = compute()
seconds = jax.config.jax_persistent_cache_min_compile_time_secs
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.jit(lambda x: x + 3)(1)
print(json.dumps([first, seconds]))
"""
    (_, seconds), errors = run(code, TORCH_JAX_CACHE_DIR=str(ours), **environment)
    assert not errors and seconds == 1.0  # JAX's default
    assert ours.exists() is (name == "after it")
    assert theirs.exists() is is_used and (not is_used or any(theirs.iterdir()))


@pytest.mark.slow
def test_settings_switch_it_in_the_process(tmp_path):
    code = f"""
import os, torch_jax
def entered(function):
    before = set(os.listdir({str(tmp_path)!r}))
    function()
    return len(set(os.listdir({str(tmp_path)!r})) - before)
counts = [entered(lambda: torch.ones(2, device="jax").sin())]
torch_jax.config.set("cache", True)
counts.append(entered(lambda: torch.ones(3, device="jax").sin()))
torch_jax.config.set("cache", False)
counts.append(entered(lambda: torch.ones(4, device="jax").sin()))
print(json.dumps([*counts, jax.config.jax_compilation_cache_dir]))
"""
    switches = {"TORCH_JAX_CACHE": "0", "TORCH_JAX_CACHE_DIR": str(tmp_path)}
    (off, on, off_again, directory), errors = run(code, **switches)
    assert (off, off_again, directory, errors) == (0, 0, None, "")
    assert on > 0


def test_the_directory_is_the_users(monkeypatch, tmp_path):
    monkeypatch.setattr(disk_cache, "follow", lambda: None)  # the tests' own cache stays in use
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with config.temporarily("cache_dir", "auto"):
        assert disk_cache.directory() == tmp_path / ".cache" / "torch_jax"
        monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # which the specification says to ignore
        assert disk_cache.directory() == tmp_path / ".cache" / "torch_jax"
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        assert disk_cache.directory() == tmp_path / "xdg" / "torch_jax"
    with config.temporarily("cache_dir", "~/mine"):
        assert disk_cache.directory() == tmp_path / "mine"


def test_the_least_recently_used_go_first(tmp_path):
    other = tmp_path / "not ours"
    other.write_bytes(bytes(5000))
    files = CacheFiles(tmp_path, 1000)
    for number in range(8):
        files.put(str(number), bytes(100))
        os.utime(files._file(str(number)), (number, number))
    files.get("0")
    for number in range(8, 12):
        files.put(str(number), bytes(100))
    kept = {number for number in range(12) if files.get(str(number))}
    assert {0, 8, 9, 10, 11} <= kept and not {1, 2} & kept
    assert sum(path.stat().st_size for path in entries(tmp_path)) <= 1000
    files.put("large", bytes(1001))
    assert files.get("large") is None and other.exists()


def test_what_a_killed_process_left_goes_too(tmp_path):
    left = tmp_path / "half.1-2.part"
    left.write_bytes(bytes(900))
    os.utime(left, (1, 1))
    files = CacheFiles(tmp_path, 1000)
    files.put("key", bytes(200))
    assert not left.exists() and files.get("key") == bytes(200)


def test_machines_and_keys_are_told_apart(tmp_path):
    one, other = CacheFiles(tmp_path, 10_000, "one"), CacheFiles(tmp_path, 10_000, "other")
    one.put("key", b"1")
    assert other.get("key") is None and one.get("key 2") is None and one.get("key") == b"1"
    one._file("key").rename(one._file("key 2"))  # an entry in another's place
    assert one.get("key 2") is None


def test_threads_share_the_files(tmp_path):
    files = CacheFiles(tmp_path, 4000)

    def work(number: int) -> bool:
        files.put(str(number % 7), str(number % 7).encode() * 200)
        return files.get(str(number % 7)) in (None, str(number % 7).encode() * 200)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(400)))


def of_another_user(directory: Path, monkeypatch) -> None:
    owner = directory.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)


def open_to_a_group(directory: Path, monkeypatch) -> None:
    directory.chmod(0o770)


def open_to_all(directory: Path, monkeypatch) -> None:
    directory.chmod(0o707)


def to_be_renamed_by_all(directory: Path, monkeypatch) -> None:
    directory.parent.chmod(0o777)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="the system knows no owners")
@pytest.mark.parametrize(
    "spoil", [of_another_user, open_to_a_group, open_to_all, to_be_renamed_by_all]
)
def test_a_directory_that_others_may_write_to_is_not_used(tmp_path, caplog, monkeypatch, spoil):
    directory = tmp_path / "parent" / "cache"
    CacheFiles(directory, 1000).put("key", b"value")
    assert CacheFiles(directory, 1000).get("key") == b"value" and not caplog.records
    spoil(directory, monkeypatch)
    files = CacheFiles(directory, 1000)
    assert files.get("key") is None
    files.put("another", b"value")
    assert len(entries(directory)) == 1
    (warning,) = caplog.records
    assert "cache_dir" in warning.getMessage() and str(tmp_path) in warning.getMessage()


def test_a_directory_that_is_missing_is_made_for_the_user_alone(tmp_path, caplog):
    files = CacheFiles(tmp_path / "cache", 1000)
    assert files.get("key") is None
    assert not (tmp_path / "cache").exists()
    files.put("key", b"value")
    assert files.get("key") == b"value" and not caplog.records
    if os.name == "posix":
        assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700


def test_everybody_may_write_to_a_parent_where_each_owns_his_files(tmp_path, caplog):
    tmp_path.chmod(0o1777)
    files = CacheFiles(tmp_path / "cache", 1000)
    files.put("key", b"value")
    assert files.get("key") == b"value" and not caplog.records


def test_what_is_compiled_for_chips_elsewhere_is_found_by_their_machine(tmp_path, monkeypatch):
    """It is kept in a folder of its own, and nothing is loaded meanwhile."""
    ours = disk_cache._Cache(tmp_path / "ours", 10**6, "this machine")
    monkeypatch.setattr(ours, "_is_wanted", lambda: True)
    ours.put("program", b"for this machine")
    with disk_cache.elsewhere(tmp_path / "kept"):
        assert ours.get("program") is None
        ours.put("program", b"for chips")
    with disk_cache.elsewhere(None):
        ours.put("another", b"")
    assert ours.get("program") == b"for this machine" and ours.get("another") is None
    theirs = disk_cache._Cache(tmp_path / "kept", 10**6, "their machine")
    monkeypatch.setattr(theirs, "_is_wanted", lambda: True)
    assert theirs.get("program") == b"for chips"
